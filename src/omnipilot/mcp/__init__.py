"""The advice as tools of the Model Context Protocol, for agents that manage deployments."""
