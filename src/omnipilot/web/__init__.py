"""The service: an HTTP API, pages for operators, and figures for Prometheus."""
