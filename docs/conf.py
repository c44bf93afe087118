"""Sphinx configuration."""

import sys
from pathlib import Path

from omnipilot import __version__

sys.path.insert(0, str(Path(__file__).parent))  # for the extension beside this file

project = "OmniPilot"
author = "the OmniPilot authors"
copyright = "the OmniPilot authors"
version = release = __version__

extensions = ["myst_parser", "reference_tables"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "OmniPilot"
html_copy_source = False
html_show_sphinx = False
nitpicky = True
