"""How `make docs` builds the site; scripts/site_pages.py writes what the program says of itself."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts"))

import sottovoce  # noqa: E402

project = "sottovoce"
version = release = sottovoce.__version__
copyright = "the authors of sottovoce, MIT licence"
language = "en"
# Quotation marks only: two dashes begin an option.
smartquotes_action = "q"

extensions = ["myst_parser", "sphinx.ext.autodoc", "site_pages"]
exclude_patterns = ["figures/*.json"]
needs_sphinx = "8.1"

# Links to headings as GitHub writes them, so that pages read the same there.
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 78

html_theme = "furo"
html_title = "sottovoce"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
# A summary would be fetched from the page found, which a browser refuses to a page on disk.
html_show_search_summary = False
html_theme_options = {"navigation_with_keys": False}
