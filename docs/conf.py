"""Sphinx configuration."""

from omnipilot import __version__

project = "OmniPilot"
author = "the OmniPilot authors"
copyright = "the OmniPilot authors"
version = release = __version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "OmniPilot"
html_copy_source = False
html_show_sphinx = False
nitpicky = True
