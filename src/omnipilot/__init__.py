"""OmniPilot: which GPU kind, tensor parallel and precision to serve an LLM on, and how sure."""

__version__ = "0.1.0"

__all__ = ["__version__"]
