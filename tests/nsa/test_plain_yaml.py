"""A file is read as plain values or refused in one sentence, whatever it holds."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsa.plain_yaml import read_plain_yaml


def refusal(path: Path) -> str:
    with pytest.raises(ValueError) as caught:
        read_plain_yaml(path)
    assert str(caught.value).isprintable()
    return str(caught.value)


GOOD_FILES: dict[str, tuple[bytes, object]] = {
    "empty": (b"", None),
    "comment": (b"# nothing\n", None),
    "null": (b"[~, null, ]", [None, None]),
    "number": (b"[1, -2, 1_000, 2e-4, 1.5e3, .5, 3.]", [1, -2, 1000, 2e-4, 1500.0, 0.5, 3.0]),
    "number-as-key": (b"1: {}", {1: {}}),
    "bool": (b"[true, False]", [True, False]),
    "yaml-1.1-octal": (b"0100", "0100"),
    "yaml-1.1-sexagesimal": (b"1:30", "1:30"),
    "yaml-1.1-bool": (b"[off, yes]", ["off", "yes"]),
    "yaml-1.1-date": (b"2024-13-45", "2024-13-45"),
    "yaml-1.1-merge": (b"{<<: {a: 1}}", {"<<": {"a": 1}}),
    "byte-order-mark": (b"\xef\xbb\xbfa: 1", {"a": 1}),
    "surrogate": (b'"\\ud800"', "\ud800"),
}


@pytest.mark.parametrize(("content", "value"), GOOD_FILES.values(), ids=GOOD_FILES.keys())
def test_a_plain_file_is_read_as_yaml_1_2(content: bytes, value: object, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    assert repr(read_plain_yaml(path)) == repr(value)


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "binary": (b"\x80\x00", "must be UTF-8 text, got byte 0x80 at 0"),
    "utf-16": ("model: {}".encode("utf-16"), "must be UTF-8 text, got byte 0xff at 0"),
    "nul": (b"model:\0", "must be printable text, got character 0x00 at 6"),
    "terminal-escape": (b"model: \x1b[31m", "must be printable text, got character 0x1b at 7"),
    "tab": (b"model:\n\tdim: 1", "line 2, column 1: while scanning for the next token, found character '\\t'"),
    "unclosed": (b"model: [1,", "line 1, column 11: while parsing a flow node"),
    "two-documents": (b"--- {}\n--- {}\n", "line 2, column 1: expected a single document in the stream"),
    "repeated-key": (b"model: {dim: 1, dim: 2}", "line 1, column 17: key 'dim' is given twice"),
    "repeated-section": (b"model: {}\n'model': {}", "line 2, column 1: key 'model' is given twice"),
    "list-as-key": (b"[a]: 1", "line 1, column 1: while constructing a mapping, found unhashable key"),
    "python-tag": (b"model: !!python/object/apply:os.getcwd []", "line 1, column 8: tags (!, !!) are not allowed"),
    "core-tag": (b'model: !!int ""', "line 1, column 8: tags (!, !!) are not allowed"),
    "anchor": (b"model: &x {}", "line 1, column 8: anchors and aliases are not allowed"),
    "alias": (b"model: *x", "line 1, column 8: anchors and aliases are not allowed"),
    "deep-lists": (b"model: " + b"[" * 60_000, "must not be nested hundreds of levels deep"),
    "deep-mappings": (b"{a: " * 10_000, "must not be nested hundreds of levels deep"),
    "many-digits": (b"model: " + b"9" * 5000, "must not hold a number of thousands of digits"),
    "large": (b"#" * 65_537, "must be at most 65536 bytes"),
}


@pytest.mark.parametrize(("content", "start"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_refused_in_one_sentence(content: bytes, start: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    assert refusal(path).startswith(start)


def test_billion_laughs_are_not_expanded(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))]
    path.write_text("\n".join(lines))
    assert "anchors and aliases are not allowed" in refusal(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path).endswith("must be a regular file, not a folder, a pipe or a device")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_that_nobody_writes_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.yaml")
    assert refusal(tmp_path / "c.yaml").endswith("must be a regular file, not a folder, a pipe or a device")


def test_an_endless_device_is_refused() -> None:
    assert refusal(Path("/dev/zero")).endswith("must be a regular file, not a folder, a pipe or a device")


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "c.yaml"
    path.write_text("model: {}")
    monkeypatch.setattr(Path, "open", refuse)  # root may read anything, so a mode alone would prove nothing
    assert refusal(path) == "cannot be read: Permission denied"


@given(st.binary(max_size=200) | st.text("abdl:{}[]&*!|>-#'\" \n\t019.e%@", max_size=60).map(str.encode))
def test_any_file_loads_or_is_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    try:
        read_plain_yaml(path)
    except ValueError as error:
        message = str(error)
    else:
        message = "is read"
    assert message.isprintable()
    assert len(message) < 300
