"""How Sphinx builds the site: `make docs`."""

project = "allaboard"
html_title = "allaboard"
extensions = ["myst_parser"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
smartquotes = False  # --help stays --help
html_copy_source = False
html_show_sourcelink = False
exclude_patterns = ["conf.py"]
# Anchors as GitHub makes them, so that a link works in both places.
myst_heading_anchors = 4
suppress_warnings = [
    "misc.highlighting_failure",  # a fence may hold a part of a file
    "toc.not_included",  # a README that a page shows has a place in no menu
]
