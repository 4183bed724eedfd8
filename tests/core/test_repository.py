"""The file layer: what is a model, what is a version, what has changed, what must stay inside."""

from __future__ import annotations

import os

import pytest

from kernel.config import ConfigError, read_config
from kernel.errors import Code, ServingError
from kernel.repository.overrides import OverrideFolder, check_model_name, remove_left_behind
from kernel.repository.repository import (
    FileRepository,
    ModelFolder,
    Repositories,
    missing_versions,
    not_unique,
    select_versions,
)


def make(root, *files):
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            path.write_text("x")


def test_scan(tmp_path):
    make(tmp_path, "a/1/model.py", "b/", "README.md", ".git/config", "__pycache__/x.pyc")
    found = FileRepository(tmp_path).scan()
    assert {name: folder.versions for name, folder in found.items()} == {"a": (1,), "b": ()}
    assert found["a"].path == tmp_path / "a"


def test_a_folder_whose_name_is_no_text_is_no_model_and_is_told(tmp_path):
    make(tmp_path, "a/1/model.py", "ä/1/model.py")
    try:
        os.makedirs(os.fsencode(tmp_path) + b"/bad\xff/1")
    except OSError:
        pytest.skip("this file system has names of text alone")
    repository = FileRepository(tmp_path)
    assert list(repository.scan()) == ["a", "ä"] and repository.find("bad\udcff") is None
    assert repository.strays() == [r"'bad\udcff'"]


def test_find(tmp_path):
    make(tmp_path, "a/1/model.py", "file", ".hidden/1/model.py")
    repository = FileRepository(tmp_path)
    assert repository.find("a").versions == (1,)
    for name in ("b", "file", ".hidden", "", "..", "a/1", "a\0"):
        assert repository.find(name) is None


def test_version_folders(tmp_path):
    make(
        tmp_path,
        "1/m",
        "12/m",
        "3/m",
        "010/m",
        "0/m",
        "x/m",
        "1.5/m",
        "-1/m",
        "٣/m",
        "99999999999999999999/m",
        "warmup/d",
        "initial_state/d",
    )
    make(tmp_path, "configs/a.pbtxt", "__pycache__/m.pyc", ".git/m", "7")
    folder = ModelFolder.look(tmp_path)
    assert folder.versions == (1, 3, 12)
    assert "ignore version directory '010' which contains leading zeros in its directory name" in folder.warnings
    assert sum("leading zeros" in warning for warning in folder.warnings) == 2
    assert [warning.split("'")[1] for warning in folder.warnings if "integral" in warning] == sorted(
        ["-1", "1.5", "99999999999999999999", "x", "٣"]
    )
    assert not [
        warning for warning in folder.warnings if "warmup" in warning or "configs" in warning or "'7'" in warning
    ]


def test_missing_repository(tmp_path):
    with pytest.raises(ServingError) as caught:
        FileRepository(tmp_path / "no").scan()
    assert str(caught.value) == f"failed to stat file {tmp_path / 'no'}"
    assert caught.value.code is Code.INTERNAL
    make(tmp_path, "file")
    with pytest.raises(ServingError, match="it is not a folder"):
        FileRepository(tmp_path / "file").scan()


def test_a_model_in_two_repositories(tmp_path):
    make(tmp_path, "one/a/1/model.py", "two/a/1/model.py", "two/b/1/model.py")
    one, two = tmp_path / "one", tmp_path / "two"
    repositories = Repositories([FileRepository(one), FileRepository(two)])
    assert [folder.path for folder in repositories.find("b")] == [two / "b"]
    assert repositories.find("c") == []
    both = [folder.path for folder in repositories.find("a")]
    assert both == [one / "a", two / "a"]
    words = "failed to poll model 'a': not unique across all model repositories"
    assert str(not_unique("a", both)) == f"{words} — it is in {one / 'a'} and in {two / 'a'}"


@pytest.mark.parametrize("name", ["../a", "a/b", "..", "", "a\\b", ".", "a\0"])
def test_names_that_lead_out(name):
    with pytest.raises(
        ServingError, match=r"invalid model name '.*', model name must not contain path traversal characters"
    ):
        check_model_name(name)


def test_names_that_are_fine():
    for name in ("a", "a.b", "résumé", "a b", "-", "...", "model..1", "..a", "a.."):
        check_model_name(name)


# -- version policy ----------------------------------------------------------------------------------------------------


def config(tmp_path, policy):
    folder = tmp_path / "m"
    folder.mkdir(exist_ok=True)
    (folder / "config.pbtxt").write_text(f'backend: "x"\n{policy}')
    return read_config(folder)


@pytest.mark.parametrize(
    ("policy", "available", "selected"),
    [
        ("", (1, 3, 2), (3,)),
        ("version_policy { latest { num_versions: 2 } }", (1, 3, 2), (2, 3)),
        ("version_policy { latest { num_versions: 9 } }", (1, 10, 2), (1, 2, 10)),
        ("version_policy { all {} }", (3, 1), (1, 3)),
        ("version_policy { specific { versions: [ 3, 9, 1, 1 ] } }", (1, 2, 3), (1, 3)),
    ],
)
def test_select_versions(tmp_path, policy, available, selected):
    assert select_versions(config(tmp_path, policy), available) == selected


@pytest.mark.parametrize(
    ("policy", "available", "detail"),
    [
        ("", (), "the model folder has no version folder, wanted one such as '1'"),
        ("version_policy { latest { num_versions: 0 } }", (1,), "'num_versions' of 'latest' is 0 or left out"),
        ("version_policy { latest { } }", (1,), "'num_versions' of 'latest' is 0 or left out"),
        ("version_policy { all {} }", (), "the model folder has no version folder"),
        ("version_policy { specific { versions: [ 8, 9 ] } }", (1, 2), "the policy names 8, 9, there are 1, 2"),
        ("version_policy { specific { } }", (1,), "the policy names none, there are 1"),
    ],
)
def test_no_version(tmp_path, policy, available, detail):
    with pytest.raises(ConfigError) as caught:
        select_versions(config(tmp_path, policy), available)
    words = "at least one version must be available under the version policy of model 'm'"
    line = ":2:1" if policy else ""
    assert str(caught.value).startswith(f"{tmp_path / 'm' / 'config.pbtxt'}{line}: {words} — {detail}")
    assert caught.value.stage == "A"


def test_missing_versions_are_warnings(tmp_path):
    read = config(tmp_path, "version_policy { specific { versions: [ 1, 9 ] } }")
    assert missing_versions(read, (1, 2)) == (
        "version 9 is specified for model 'm', but the version directory is not present",
    )
    assert missing_versions(config(tmp_path, ""), (1,)) == ()


# -- what has changed --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    make(
        tmp_path,
        "m/config.pbtxt",
        "m/configs/a.pbtxt",
        "m/labels.txt",
        "m/1/model.py",
        "m/1/sub/helper.py",
        "m/2/model.py",
    )
    return ModelFolder.look(tmp_path / "m")


def test_nothing_changed(folder):
    assert folder.fingerprint() == folder.fingerprint()


@pytest.mark.parametrize(
    "path",
    ["config.pbtxt", "configs/a.pbtxt", "labels.txt", "1/model.py", "1/sub/helper.py", "1/new.bin", "warmup/data"],
)
def test_a_change(folder, path):
    before = folder.fingerprint()
    target = folder.path / path
    target.parent.mkdir(exist_ok=True)
    target.write_text("something else")
    after = folder.fingerprint()
    assert after != before
    assert after.changes(before) == (path,)
    changed = {name for name in ("config", "versions", "other") if getattr(after, name) != getattr(before, name)}
    assert changed == {"config" if path.endswith(".pbtxt") else "versions" if path.startswith("1/") else "other"}
    assert after.versions[2] == before.versions[2]


def test_the_time_alone_is_a_change(folder):
    before = folder.fingerprint()
    os.utime(folder.path / "1" / "model.py", ns=(1, 1))
    assert folder.fingerprint().changes(before) == ("1/model.py",)


def test_versions_and_files_that_go(folder):
    before = folder.fingerprint()
    (folder.path / "2" / "model.py").unlink()
    (folder.path / "2").rmdir()
    after = ModelFolder.look(folder.path).fingerprint()
    assert after.changes(before) == ("2/", "2/model.py")


@pytest.mark.parametrize(
    "path",
    [
        "1/__pycache__/model.cpython-311.pyc",
        "1/model.pyc",
        "1/.model.py.swp",
        "1/model.py~",
        "1/#model.py#",
        ".git/HEAD",
        "1/4913",
        "config.pbtxt.bak",
    ],
)
def test_what_is_no_change(folder, path):
    before = folder.fingerprint()
    make(folder.path, path)
    assert folder.fingerprint() == before


def test_links_are_followed_once(folder):
    (folder.path / "1" / "loop").symlink_to(folder.path, target_is_directory=True)
    (folder.path / "1" / "dangling").symlink_to(folder.path / "nowhere")
    before = folder.fingerprint()
    assert folder.fingerprint() == before
    assert "dangling" not in before.versions[1]


# -- files of a load request -------------------------------------------------------------------------------------------


def test_a_model_is_no_repository(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text("")
    assert FileRepository(tmp_path).mistaken() == ""
    model = FileRepository(tmp_path / "m")
    assert model.mistaken() == f"'{tmp_path}/m' holds a config.pbtxt, so it is a model itself; its repository is '{tmp_path}'"


def test_the_folder_of_a_repository_is_none(tmp_path):
    (tmp_path / "models/m/1").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    assert FileRepository(tmp_path).mistaken() == "", "there is nothing to go by"
    (tmp_path / "models/m/config.pbtxt").write_text("")
    words = f"'{tmp_path}' holds no model, but '{tmp_path}/models' does, so that may be the repository"
    assert FileRepository(tmp_path).mistaken() == words
    (tmp_path / "other/1").mkdir()
    assert FileRepository(tmp_path).mistaken() == "", "a model without a config"
    assert FileRepository(tmp_path / "none").mistaken() == ""


def test_what_systems_and_archives_leave_is_no_model(tmp_path):
    for name in ("lost+found", "__MACOSX/a", "@eaDir/1", "m/1"):
        (tmp_path / name).mkdir(parents=True)
    repository = FileRepository(tmp_path)
    assert sorted(repository.scan()) == ["@eaDir", "m"], "what has a version may well be a model"
    assert repository.strays() == ["__MACOSX", "lost+found"]


@pytest.mark.parametrize("scheme", ["hdfs", "s33", "file"])
def test_folders_are_served(scheme):
    with pytest.raises(ServingError) as caught:
        FileRepository(f"{scheme}://bucket/models").scan()
    words = f": no installed plugin serves {scheme}://, s3, gs, as and az are known; copy the models into a folder, or mount it"
    assert str(caught.value) == f"failed to stat file {scheme}:/bucket/models{words}"


def test_what_a_killed_process_has_left_is_removed(tmp_path, monkeypatch):
    """And nothing that is in use, in this process or in another, nor what is somebody else's."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = OverrideFolder("m", {"1/model.py": b"abc"})
    gone = OverrideFolder("m", {"1/model.py": b"abc"})
    os.close(gone._lock)  # as the end of a process does
    other = tmp_path / "kernel-model-other"
    other.mkdir()
    (tmp_path / "kernel-model-file").write_text("")
    (tmp_path / "kernel-model-link").symlink_to(gone.path.parents[1])
    remove_left_behind()
    assert mine.path.is_dir() and other.is_dir()
    assert not gone.path.parents[1].exists()
    mine.remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernel-model-file", "kernel-model-link", "kernel-model-other"]


def test_override_folder():
    override = OverrideFolder("m", {"file:1/model.py": b"abc", "labels.txt": b"l", "2/./a/../b": b""})
    try:
        assert override.folder.name == "m"
        assert override.folder.versions == (1, 2)
        assert (override.folder.path / "1" / "model.py").read_bytes() == b"abc"
        assert sorted(os.listdir(override.folder.path / "2")) == ["b"]
    finally:
        override.remove()
    assert not override.folder.path.exists()
    override.remove()


def test_slashes_in_front_mean_the_model_folder():
    """As in the reference; a backslash is a letter like any other."""
    override = OverrideFolder("m", {"file:/1/a": b"", "file://1/b": b"", "///1/c": b"", "1/d\\e": b""})
    try:
        assert sorted(os.listdir(override.folder.path / "1")) == ["a", "b", "c", "d\\e"]
    finally:
        override.remove()


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("../x", "../x"),
        ("1/../../x", "../x"),
        ("file:/../x", "../x"),
        ("..", ".."),
        ("1/..", "."),
        ("", "."),
        ("file:/", "."),
        ("file:1/model.py/", "1/model.py"),
    ],
)
def test_files_that_lead_out(given, normal):
    with pytest.raises(ServingError) as caught:
        OverrideFolder("m", {"1/model.py": b"", given: b""})
    assert (
        str(caught.value)
        == f"Invalid file parameter '{given}' with normalized path '{normal}' must stay within model directory."
    )
    assert caught.value.code is Code.INVALID_ARG


def test_files_in_each_others_way():
    with pytest.raises(ServingError, match="failed to write the files given for model 'm'"):
        OverrideFolder("m", {"1": b"", "1/model.py": b""})


def test_a_relative_path_survives_a_change_of_the_working_directory(tmp_path, monkeypatch):
    """A model may call os.chdir; the words still have the path as it was given."""
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    there, not_there = FileRepository("models"), FileRepository("nowhere")
    monkeypatch.chdir("/")
    assert list(there.scan()) == ["m"]
    with pytest.raises(ServingError, match="failed to stat file nowhere"):
        not_there.scan()
