"""How Sphinx builds the site: `make docs`."""

from __future__ import annotations

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

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
myst_enable_extensions = ["fieldlist"]  # :param name: of docstrings
# The Python reference: types without their packages, an argument in each line of what is long.
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
suppress_warnings = [
    "misc.highlighting_failure",  # a fence may hold a part of a file
    "toc.not_included",  # a README that a page shows has a place in no menu
]


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", _keep_exact_references)


def _keep_exact_references(app: Sphinx, doctree: nodes.document) -> None:
    """The Python reference names what is ours by its whole path. Sphinx would lead any other name, such as
    ``bytes``, to some member that is called like it.
    """
    for reference in [*doctree.findall(pending_xref)]:
        if reference.get("refdomain") == "py" and "." not in reference["reftarget"]:
            reference.replace_self(nodes.Text(reference["reftarget"]))
