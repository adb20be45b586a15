"""Tables of classes: which file has which, without loading one."""

from pathlib import Path

import pytest

from gradwire.lazy import LazyTable, find_classes, load_name

FILES = {
    "zebra": "@dataclass(kw_only=True)\nclass Zebra(Animal):\n",
    "ant": "@dataclass\nclass Ant(\n    Animal,\n    Small,\n):\n",
    "animal": "@dataclass(kw_only=True)\nclass Animal(Thing, ABC):\n",
    "legs": "@dataclass\nclass Leg:\n",
    "helper": "class Helper(Thing):\n",
    "_hidden": "@dataclass\nclass Hidden(Animal):\n",
    "queen": "@dataclass\nclass Wing:\n    pass\n\n\n@dataclass(kw_only=True)\nclass Queen(Ant):\n",
}


def test_the_class_of_a_file_is_found_without_loading_it(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError\n\n\n{text}")
    assert list(find_classes(tmp_path).items()) == [("ant", "Ant"), ("queen", "Queen"), ("zebra", "Zebra")]
    assert list(find_classes(tmp_path, ("zebra",))) == ["zebra", "ant", "queen"]


def test_a_table_loads_what_is_asked_for() -> None:
    table: LazyTable[type] = LazyTable({"path": ("pathlib", "Path"), "missing": ("no_such_module", "Path")})
    assert (len(table), list(table), "missing" in table) == (2, ["path", "missing"], True)
    assert table["path"] is Path


def test_a_name_that_a_package_does_not_export_is_refused_as_python_does() -> None:
    assert load_name("zoo", "Path", {"Path": "pathlib"}) is Path
    with pytest.raises(AttributeError, match="module 'zoo' has no attribute 'Pat'"):
        load_name("zoo", "Pat", {"Path": "pathlib"})
