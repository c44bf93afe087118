"""OmniPilot."""
