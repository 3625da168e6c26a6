"""Links lead somewhere."""

import re

import pytest

from tests.docs.markdown import DOCUMENTS, ROOT, anchors, links

PATH_OF_A_DOCUMENT = re.compile(r"\bdocs/\w+\.md\b")
CODE = [
    path
    for folder in ("src", "tests", "examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_resolve(document):
    for link in links(document):
        path, _, anchor = link.partition("#")
        target = (document.parent / path) if path else document
        assert target.exists(), f"{document.name} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{document.name} links to {link}"
        assert target.resolve().is_relative_to(ROOT), f"{document.name} links out of the tree: {link}"


def test_documents_that_code_and_documents_speak_of_exist():
    speaks_of = {
        name: path.relative_to(ROOT)
        for path in [*CODE, *DOCUMENTS]
        for name in PATH_OF_A_DOCUMENT.findall(path.read_text())
    }
    assert {name: path for name, path in speaks_of.items() if not (ROOT / name).exists()} == {}


def test_every_document_is_linked_from_another():
    linked = {
        (document.parent / link.partition("#")[0]).resolve()
        for document in DOCUMENTS
        for link in links(document)
        if link.partition("#")[0]
    }
    assert [path.name for path in DOCUMENTS if path not in linked and path.name != "README.md"] == []
