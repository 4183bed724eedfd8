"""Repositories in object stores: what is fetched and when, what the cache keeps, what is told where something fails.

On virtual time with a store in memory; what is the server's own business, with an S3 server on a thread.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pytest
from buckets import Bucket, Memory, s3_server
from live import Answering, X, said, states
from virtual import BASE, run

from kernel import Budget, Code, Kernel, ServingError, StorageOptions
from kernel_storage import fetching, stores
from kernel_storage.cache import Cache
from kernel_storage.credentials import settings_of
from kernel_storage.location import Location
from kernel_storage.repository import StoredRepository

ALL = 'version_policy { all {} }\n'


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is fetched: keys, once for each part."""
    found: list[str] = []
    part_of = stores.part_of

    def noted(store: Any, one: stores.Object, begin: int, end: int) -> memoryview:
        found.append(one.key.removeprefix("models/"))
        return part_of(store, one, begin, end)

    monkeypatch.setattr(fetching, "part_of", noted)
    return found


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    with s3_server() as address:
        yield address


@pytest.fixture
def bucket(server: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return Bucket(*server)


def serving(*repositories: Any, **options: Any) -> Kernel:
    return Kernel(*repositories, plugins=[Answering()], **options)


def objects(cache: Path) -> list[Path]:
    return sorted(cache.glob("v1/objects/*/*"))


# -- control modes -----------------------------------------------------------------------------------------------------------


def test_polls_fetch_what_has_changed_and_nothing_else(memory: Memory, fetched: list[str], tmp_path: Path) -> None:
    async def main() -> None:
        memory.model("m", 1, ALL + BASE)
        memory.model("m", 2, ALL + BASE, version=2)
        memory.model("other", 7, BASE)
        async with serving(memory.open(tmp_path), control_mode="poll", poll_seconds=15) as kernel:
            assert (await said(kernel, "m", 1), await said(kernel, "m"), await said(kernel, "other")) == (1, 2, 7)
            assert sorted(fetched) == sorted(
                ["m/1/answer", "m/2/answer", "m/config.pbtxt", "other/1/answer", "other/config.pbtxt"]
            )
            fetched.clear()
            loaded = kernel.model("m", 1)
            await asyncio.sleep(31)
            assert fetched == []
            memory.put("m/2/answer", "3")
            memory.model("new", 4, BASE)
            await asyncio.sleep(16)
            assert (await said(kernel, "m", 1), await said(kernel, "m"), await said(kernel, "new")) == (1, 3, 4)
            assert sorted(fetched) == ["m/2/answer", "new/1/answer", "new/config.pbtxt"]
            assert kernel.model("m", 1) is loaded  # a version whose files are the same goes on
            memory.delete("new/1/answer")
            memory.delete("new/config.pbtxt")
            await asyncio.sleep(16)
            assert states(kernel) == {"m/1": "READY", "m/2": "READY", "other/1": "READY"}

    run(main())
    assert not list(tmp_path.glob("v1/servers/*"))


def test_a_second_start_fetches_nothing(memory: Memory, fetched: list[str], tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(memory.open(tmp_path)) as kernel:
            assert await said(kernel, "m") == 1

    memory.model("m", 1, BASE)
    run(main())
    assert len(fetched) == 2
    run(main())
    assert len(fetched) == 2


def test_only_versions_that_are_loaded_are_fetched(memory: Memory, fetched: list[str], tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(memory.open(tmp_path)) as kernel:
            assert await said(kernel, "m") == 9
            folder = kernel.model("m").model_folder
            assert sorted(path.name for path in folder.glob("*/*")) == ["answer"]

    for version in range(1, 10):
        memory.model("m", version, BASE, version)
    run(main())
    assert sorted(fetched) == ["m/9/answer", "m/config.pbtxt"]


def test_explicit_and_on_demand(memory: Memory, tmp_path: Path) -> None:
    async def main() -> None:
        memory.model("m", 1, BASE)
        async with serving(memory.open(tmp_path), control_mode="explicit") as kernel:
            assert states(kernel) == {"m": ""}
            await kernel.load("m")
            memory.put("m/1/answer", "2")
            assert await said(kernel, "m") == 1
            await kernel.load("m")
            assert await said(kernel, "m") == 2
            with pytest.raises(ServingError, match="model not found in any model repository; did you mean 'm'"):
                await kernel.load("mm")
            await kernel.unload("m")
            assert states(kernel) == {"m/1": "UNAVAILABLE unloaded"}
        memory.model("n", 3, BASE)
        async with serving(memory.open(tmp_path), control_mode="on-demand", budget=Budget(models=1)) as kernel:
            assert [await said(kernel, name) for name in "mnm"] == [2, 3, 2]
            with pytest.raises(ServingError, match="Request for unknown model: 'no' is not found"):
                await kernel.infer("no", X)

    run(main())


def test_the_index_never_waits_and_is_refreshed(memory: Memory, tmp_path: Path) -> None:
    memory.model("m", 1, BASE)
    repository = memory.open(tmp_path)
    assert list(repository.scan()) == ["m"]
    memory.model("n", 1, BASE)
    assert list(repository.known()) == ["m"]
    repository._looked -= 11
    repository.known()
    while repository._looking.locked():
        pass
    assert list(repository.known()) == ["m", "n"]
    repository.close()


def test_files_are_removed_when_nobody_lives_on_them(memory: Memory, tmp_path: Path) -> None:
    def folders() -> list[Path]:
        return list(tmp_path.glob("v1/servers/*/*/m"))

    async def main() -> None:
        memory.model("other", 1, BASE)
        async with serving(memory.open(tmp_path), control_mode="explicit") as kernel:
            for number in range(4):
                memory.model("m", number, BASE)
                await kernel.load("m")
                await asyncio.sleep(1)
            assert await said(kernel, "m") == 3
            assert len(folders()) == 1  # of five
            memory.put("m/config.pbtxt", "no config")
            with pytest.raises(ServingError):
                await kernel.load("m")
            assert len(folders()) == 1

    run(main())


# -- the cache ---------------------------------------------------------------------------------------------------------------


def test_servers_at_the_same_time_fetch_once(memory: Memory, fetched: list[str], tmp_path: Path) -> None:
    for number in range(20):
        memory.put(f"m/1/part{number}", b"x" * 1000)
    memory.put("m/config.pbtxt", BASE)
    found = []

    def fetch() -> None:
        repository = memory.open(tmp_path)
        folder = repository.scan()["m"]
        files = folder.fetch()
        assert files is not None
        files.bring([1])
        found.append(sum(path.stat().st_size for path in files.folder.path.glob("1/*")))
        repository.close()

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [20_000] * 4
    assert len(fetched) == 21


def test_large_objects_come_in_parts(memory: Memory, fetched: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PART", 1000)
    content = os.urandom(12_345)
    memory.put("m/1/weights", content)
    repository = memory.open(tmp_path)
    files = repository.scan()["m"].fetch()
    assert files is not None
    assert (files.folder.path / "1" / "weights").stat().st_size == 0  # a stand-in: nobody knows yet whether it is wanted
    files.bring([1])
    assert (files.folder.path / "1" / "weights").read_bytes() == content
    assert len(fetched) == 13
    repository.close()


def test_a_fetch_that_breaks_leaves_nothing(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PART", 1000)
    memory.put("m/1/weights", b"x" * 5000)
    part_of = stores.part_of

    def breaks(store: Any, one: stores.Object, begin: int, end: int) -> memoryview:
        if begin == 3000:
            raise ServingError(Code.INTERNAL, "the network is down")
        return part_of(store, one, begin, end)

    monkeypatch.setattr(fetching, "part_of", breaks)
    repository = memory.open(tmp_path)
    files = repository.scan()["m"].fetch()
    assert files is not None
    with pytest.raises(ServingError, match="the network is down"):
        files.bring([1])
    files.remove()
    assert objects(tmp_path) == []
    assert not list(tmp_path.glob("v1/servers/*/*/*"))
    repository.close()


def test_what_goes_was_used_least_recently_and_is_in_no_folder(memory: Memory, tmp_path: Path) -> None:
    for name in "abcd":
        memory.put(f"{name}/1/weights", name.encode() * 1000)
    repository = memory.open(tmp_path, cache_size=2500)
    there = repository.scan()
    kept = {}
    for name in "abc":
        files = there[name].fetch()
        assert files is not None
        files.bring([1])
        if name == "a":
            kept[name] = files
        else:
            files.remove()
    assert sorted(path.read_bytes()[:1] for path in objects(tmp_path)) == [b"a", b"c"]
    kept["a"].remove()
    files = there["d"].fetch()
    assert files is not None
    files.bring([1])
    assert sorted(path.read_bytes()[:1] for path in objects(tmp_path)) == [b"c", b"d"]
    repository.close()


def test_a_model_that_is_larger_than_the_cache_is_refused(memory: Memory, tmp_path: Path) -> None:
    memory.put("m/1/weights", b"x" * 3000)
    repository = memory.open(tmp_path, cache_size=2500)
    files = repository.scan()["m"].fetch()
    assert files is not None
    words = r"model 'm' of 'gs://bucket/models' has 3000 bytes, and the cache of stored models may have 2500 \(--storage"
    with pytest.raises(ServingError, match=words):
        files.bring([1])
    repository.close()


def test_what_was_changed_in_the_cache_is_fetched_again(memory: Memory, fetched: list[str], tmp_path: Path) -> None:
    memory.put("m/1/weights", b"good")
    for content in (b"goo", b"evil"):
        repository = memory.open(tmp_path)
        files = repository.scan()["m"].fetch()
        assert files is not None
        files.bring([1])
        assert (files.folder.path / "1/weights").read_bytes() == b"good"
        repository.close()
        (path,) = objects(tmp_path)
        path.chmod(0o644)
        path.write_bytes(content)
    repository = memory.open(tmp_path)
    files = repository.scan()["m"].fetch()
    assert files is not None
    files.bring([1])
    assert (files.folder.path / "1/weights").read_bytes() == b"good"
    assert len(fetched) == 3
    repository.close()


def test_what_a_killed_server_has_left_is_removed(tmp_path: Path) -> None:
    dead = Cache(str(tmp_path), 0)
    left = dead.new_folder()
    living = Cache(str(tmp_path), 0)
    other = living.new_folder()
    assert left.is_dir() and other.is_dir()
    os.close(dead._lock)  # as at the end of its process
    third = Cache(str(tmp_path), 0)
    third.new_folder()
    assert not left.exists() and other.is_dir()
    for cache in (living, third):
        cache.close()


def test_a_cache_that_was_emptied_is_made_anew(memory: Memory, tmp_path: Path) -> None:
    async def main() -> None:
        memory.model("m", 1, BASE)
        memory.model("n", 2, BASE)
        async with serving(memory.open(tmp_path), control_mode="explicit") as kernel:
            await kernel.load("m")
            shutil.rmtree(tmp_path / "v1")
            await kernel.load("n")
            assert (await said(kernel, "m"), await said(kernel, "n")) == (1, 2)
            await kernel.load("m")
        assert not folders()

    def folders() -> list[Path]:
        return list(tmp_path.glob("v1/servers/*"))

    run(main())


def test_a_disk_that_is_full(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    memory.put("m/1/weights", b"x" * 3000)
    repository = memory.open(tmp_path)
    files = repository.scan()["m"].fetch()
    assert files is not None
    monkeypatch.setattr(fetching.os, "pwrite", full)
    words = "failed to write the object 'models/m/1/weights' into the cache: No space left on device; --storage-cache says where"
    with pytest.raises(ServingError, match=words):
        files.bring([1])
    assert objects(tmp_path) == []
    repository.close()


def test_file_systems_without_links(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*arguments: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    memory.put("m/1/weights", b"x")
    repository = memory.open(tmp_path)
    files = repository.scan()["m"].fetch()
    assert files is not None
    files.bring([1])
    assert (files.folder.path / "1/weights").read_bytes() == b"x"
    repository.close()


def test_file_systems_without_locks(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    memory.put("m/1/weights", b"x")
    repository = memory.open(tmp_path)
    folder = repository.scan()["m"]
    files = folder.fetch()
    assert files is not None
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(ServingError, match="failed to make room in the cache: No locks available; --storage-cache says where"):
        files.bring([1])
    with pytest.raises(ServingError, match="failed to lock a file of the cache: No locks available"):
        repository._fetcher.fetch({"0" * 64: stores.Object("models/m/1/weights", 1, '"0"', 0)})
    repository.close()
    other = memory.open(tmp_path)
    with pytest.raises(ServingError, match="failed to make a folder for stored models: No locks available"):
        other.scan()["m"].fetch()
    other.close()


def test_a_stop_ends_what_is_fetched(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the part that it is at; nothing of it stays."""
    monkeypatch.setattr(fetching, "PART", 1000)
    monkeypatch.setattr(fetching, "WORKERS", 1)
    memory.put("m/1/weights", b"x" * 50_000)
    part_of = stores.part_of
    begun, go_on = threading.Event(), threading.Event()
    count = 0

    def slow(store: Any, one: stores.Object, begin: int, end: int) -> memoryview:
        nonlocal count
        count += 1
        begun.set()
        assert go_on.wait(30.0)
        return part_of(store, one, begin, end)

    monkeypatch.setattr(fetching, "part_of", slow)
    repository = memory.open(tmp_path)
    files = repository.scan()["m"].fetch()
    assert files is not None
    failures: list[str] = []

    def bring() -> None:
        try:
            files.bring([1])
        except ServingError as error:
            failures.append(error.message)

    thread = threading.Thread(target=bring, daemon=True)
    thread.start()
    assert begun.wait(30.0)
    repository.close()
    go_on.set()
    thread.join(30.0)
    assert failures == ["the fetch was given up"]
    assert count == 1 and objects(tmp_path) == []


def test_a_stop_while_parts_are_handed_out(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool that a stop shut down takes no more: that is told as the stop, once the parts that run have ended."""
    monkeypatch.setattr(fetching, "PART", 1000)
    memory.put("m/1/weights", b"x" * 50_000)
    repository = memory.open(tmp_path)
    files = repository.scan()["m"].fetch()
    assert files is not None
    submit, handed = ThreadPoolExecutor.submit, 0

    def third(pool: ThreadPoolExecutor, step: Any) -> Any:
        nonlocal handed
        if pool._thread_name_prefix == "kernel-storage-part":
            handed += 1
            if handed == 3:
                repository.close()
        return submit(pool, step)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", third)
    with pytest.raises(ServingError, match="the fetch was given up"):
        files.bring([1])
    assert handed == 3 and objects(tmp_path) == []


def test_a_cache_that_others_may_write_is_refused(memory: Memory, tmp_path: Path) -> None:
    memory.put("m/1/weights", b"x")
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1").chmod(0o777)
    repository = memory.open(tmp_path)
    with pytest.raises(ServingError, match="could be written by others, who could change what models do; it has to be"):
        repository.scan()["m"].fetch()
    repository.close()


# -- what objects may be -------------------------------------------------------------------------------------------------------


def test_an_object_that_changes_while_it_is_fetched(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who uploads right then costs a second look; who never ends it, the load."""
    part_of = stores.part_of
    uploads = ["2", "3"]

    def changed(store: Any, one: stores.Object, begin: int, end: int) -> memoryview:
        if one.key.endswith("answer") and uploads:
            memory.put("m/1/answer", uploads.pop(0))
        return part_of(store, one, begin, end)

    monkeypatch.setattr(fetching, "part_of", changed)

    async def main() -> None:
        memory.model("m", 1, BASE)
        async with serving(memory.open(tmp_path), control_mode="explicit") as kernel:
            with pytest.raises(ServingError, match="the object 'models/m/1/answer' was changed while it was fetched; load again"):
                await kernel.load("m")
            uploads.append("4")
            await kernel.load("m")
            assert await said(kernel, "m") == 4

    run(main())


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("bad/../../x", 'a key is no path, Error parsing Path "models/bad/../../x": Encountered illegal character sequence ".."'),
        ("bad//x", 'a key is no path, Path "models/bad//x" contained empty path segment'),
        ("bad/1/a\x01b", "a key is no path"),
        ("bad/" + "x" * 300, "has a part of more than 255 bytes"),
        ("bad/" + "x/" * 40 + "x", "is longer than 2048 bytes, or more than 32 folders deep"),
        ("bad/config.pbtxt/x", "'bad/config.pbtxt' is a file, and a folder with others in it"),
    ],
)
def test_keys_that_can_be_no_files(bucket: Bucket, tmp_path: Path, key: str, words: str) -> None:
    """The model that has one is not there, with the reason; the others are."""

    async def main() -> None:
        for name in ("good", "bad"):
            bucket.put(f"{name}/config.pbtxt", BASE)
            bucket.put(f"{name}/1/answer", "1")
        bucket.put(key, "x")
        storage = StorageOptions(cache=str(tmp_path))
        async with serving(bucket.location, exit_on_error=False, storage=storage) as kernel:
            assert await said(kernel, "good") == 1
            (line,) = [one for one in kernel.index() if one.name == "bad"]
            assert line.reason.startswith("Internal: failed to read ") and words in line.reason

    run(main())
    assert not list(tmp_path.rglob("x"))


def test_folders_that_are_objects(bucket: Bucket, tmp_path: Path) -> None:
    """What tools put in the place of folders makes none into a file; keys in other scripts are names like others."""
    for key in ("", "m/", "m/1/", "m/2/", "m/warmup/"):
        bucket.put(key, "")
    bucket.put("m/config.pbtxt", BASE)
    bucket.put("m/1/ü #%20b.txt", "x")
    bucket.put("m/1/empty", "")
    bucket.put("README.md", "x")
    bucket.put(".hidden/1/x", "x")
    repository = Kernel().plugins.repository(bucket.location, StorageOptions(cache=str(tmp_path)))
    found = repository.scan()
    assert {name: one.versions for name, one in found.items()} == {"m": (1, 2)}
    files = found["m"].fetch()
    assert files is not None
    files.bring([1, 2])
    path = files.folder.path
    assert sorted(one.relative_to(path).as_posix() for one in path.rglob("*") if one.is_file()) == [
        "1/empty",
        "1/ü #%20b.txt",
        "config.pbtxt",
    ]
    assert (path / "2").is_dir()
    repository.close()


def test_too_many_objects(memory: Memory, tmp_path: Path) -> None:
    for number in range(11):
        memory.put(f"m/1/{number}", "x")
    repository = memory.open(tmp_path, max_objects=10)
    words = "there are more than 10 objects in 'gs://bucket/models'; --storage-max-objects says how many there may be"
    with pytest.raises(ServingError, match=words):
        repository.scan()
    repository.close()


# -- what can fail --------------------------------------------------------------------------------------------------------------


def failure(location: str, cache: Path) -> str:
    async def main() -> None:
        async with serving(location, storage=StorageOptions(cache=str(cache))):
            pass

    with pytest.raises(ServingError) as caught:
        run(main())
    return caught.value.message


def test_starts_that_fail(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("m/config.pbtxt", BASE)
    missing = bucket.location.replace("bucket-", "nobucket-")
    assert failure(missing, tmp_path) == (
        f"failed to read '{missing}': there is no such bucket: NoSuchBucket: The specified bucket does not exist"
    )
    nothing = bucket.location.replace("/models", "/nothing")
    assert failure(nothing, tmp_path) == f"failed to stat file {nothing}: no object lies below it"
    monkeypatch.setitem(stores.RETRY, "max_retries", 0)
    assert failure("s3://127.0.0.1:1/bucket/models", tmp_path) == (
        "failed to read 's3://127.0.0.1:1/bucket/models': Connection refused"
    )


def test_a_poll_that_fails_is_told_once_and_changes_nothing(
    memory: Memory, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = obstore.list

    def refuses(*arguments: Any, **options: Any) -> Any:
        raise obstore.exceptions.PermissionDeniedError(
            "Error performing GET https://h/b?sig=hidden in 1.5s - Server returned non-2xx status code: 403 Forbidden: "
        )

    async def main() -> None:
        memory.model("m", 1, BASE)
        with caplog.at_level(logging.ERROR, "kernel"):
            async with serving(memory.open(tmp_path), control_mode="poll", poll_seconds=15) as kernel:
                monkeypatch.setattr(obstore, "list", refuses)
                await asyncio.sleep(100)
                assert await said(kernel, "m") == 1
                assert [record.getMessage() for record in caplog.records] == [
                    "failed to poll the model repositories, what is loaded stays as it is: failed to read 'gs://bucket/models': "
                    "no permission: the server answered 403 Forbidden; "
                    "credentials: GOOGLE_APPLICATION_CREDENTIALS, or what gcloud has left"
                ]
                monkeypatch.setattr(obstore, "list", listed)
                memory.put("m/1/answer", "2")
                await asyncio.sleep(16)
                assert await said(kernel, "m") == 2

    run(main())


def test_a_store_that_is_away_when_a_model_is_loaded(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*arguments: Any, **options: Any) -> Any:
        raise obstore.exceptions.GenericError("Generic S3 error: … HTTP error\n\nDebug source: dns error")

    async def main() -> None:
        memory.model("m", 1, BASE)
        async with serving(memory.open(tmp_path), control_mode="explicit", load_models=["m"]) as kernel:
            monkeypatch.setattr(obstore, "list", away)
            with pytest.raises(ServingError, match="failed to read 'gs://bucket/models/m': the name of the server is not known"):
                await kernel.load("m")
            assert await said(kernel, "m") == 1

    run(main())


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "kernel_storage.repository", None)
    with pytest.raises(ServingError, match=r"'s3://b/m' needs a package .*: pip install 'kernel-serve\[storage\]'"):
        Kernel("s3://b/m")


# -- locations and credentials ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "bucket", "prefix", "endpoint", "account"),
    [
        ("s3://bucket", "bucket", "", "", ""),
        ("s3://bucket/a//b/", "bucket", "a/b", "", ""),
        ("s3://host:9000/bucket/a", "bucket", "a", "http://host:9000", ""),
        ("s3://https://host:443/bucket/a/b", "bucket", "a/b", "https://host:443", ""),
        ("s3://https://s3.example.com/bucket", "bucket", "", "https://s3.example.com", ""),
        ("s3://[::1]:9000/bucket", "bucket", "", "http://[::1]:9000", ""),
        ("gs://bucket/path/to", "bucket", "path/to", "", ""),
        ("as://account/container/path", "container", "path", "", "account"),
        ("az://container/path", "container", "path", "", ""),
    ],
)
def test_forms_of_locations(given: str, bucket: str, prefix: str, endpoint: str, account: str) -> None:
    place = Location.parse(given)
    assert place is not None
    assert (place.bucket, place.prefix, place.endpoint, place.account) == (bucket, prefix, endpoint, account)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("s3://", "lacks a name of a bucket; wanted is s3://bucket/path, or s3://host:port/bucket/path"),
        ("s3://host:9000", "lacks a name of a bucket"),
        ("gs://b/../c", r"lacks a path without '.', '..' and control characters; wanted is gs://bucket/path"),
        ("as://account", "lacks names of an account and a container; wanted is as://account/container/path"),
    ],
)
def test_locations_that_are_none(given: str, words: str) -> None:
    with pytest.raises(ServingError, match=words):
        Location.parse(given)


def test_other_schemes_are_nobodys() -> None:
    assert Location.parse("http://host/x") is None and Location.parse("/a/folder") is None
    with pytest.raises(ServingError, match=r"failed to stat file http:/host/x: no installed plugin serves http://, s3"):
        run(Kernel("http://host/x").start())


def settings(given: str, **environ: str) -> dict[str, Any]:
    place = Location.parse(given)
    assert place is not None
    return settings_of(place, environ)


def test_credentials(tmp_path: Path) -> None:
    home = str(tmp_path)
    assert settings("s3://h:1/b", AWS_ACCESS_KEY_ID="a", HOME=home) == {"endpoint": "http://h:1", "region": "us-east-1"}
    assert settings("s3://b", AWS_ACCESS_KEY_ID="a", AWS_DEFAULT_REGION="eu") == {}
    aws = tmp_path / ".aws"
    aws.mkdir()
    (aws / "config").write_text("[default]\nregion = eu-1\n[profile other]\nregion = eu-2\n")
    (aws / "credentials").write_text(
        "[default]\naws_access_key_id = k\naws_secret_access_key = s\n"
        "[other]\naws_access_key_id = k2\naws_secret_access_key = s2\naws_session_token = t2\n"
    )
    keys = {"access_key_id": "k", "secret_access_key": "s", "region": "eu-1"}
    assert settings("s3://b", HOME=home) == keys
    assert settings("s3://b", HOME=home, AWS_PROFILE="other") == {
        "access_key_id": "k2", "secret_access_key": "s2", "session_token": "t2", "region": "eu-2"
    }  # fmt: skip
    with pytest.raises(ServingError, match="the profile 'no' of AWS has no aws_access_key_id in "):
        settings("s3://b", HOME=home, AWS_PROFILE="no")
    assert settings("gs://b") == {}
    assert settings("as://acct/c", AZURE_STORAGE_KEY="k") == {"account_name": "acct", "account_key": "k"}
    assert settings("az://c", AZURE_STORAGE_ACCOUNT="acct") == {"account_name": "acct"}
    identity = {"AZURE_STORAGE_AUTH_TYPE": "managed_identity", "AZURE_STORAGE_CLIENT_ID": "id"}
    assert settings("as://acct/c", AZURE_STORAGE_KEY="k", **identity) == {"account_name": "acct", "client_id": "id"}
    with pytest.raises(ServingError, match="'az://c' names no account: set AZURE_STORAGE_ACCOUNT, or say as://account/container"):
        settings("az://c")


def test_tritons_file_of_several_credentials(tmp_path: Path) -> None:
    path = tmp_path / "several.json"
    mine = {"secret_key": "s", "key_id": "k", "region": "r", "session_token": "", "profile": ""}
    content = {
        "gs": {"": "/one.json", "gs://two": "/two.json"},
        "s3": {"": mine, "s3://other": {**mine, "key_id": "k2", "session_token": "t"}},
        "as": {"": {"account_str": "acct", "account_key": "key"}},
    }
    path.write_text(json.dumps(content))
    several = {"TRITON_CLOUD_CREDENTIAL_PATH": str(path)}
    assert settings("gs://one/x", **several) == {"application_credentials": "/one.json"}
    assert settings("gs://two/x", **several) == {"application_credentials": "/two.json"}
    assert settings("s3://b", **several) == {"access_key_id": "k", "secret_access_key": "s", "region": "r"}
    assert settings("s3://other/x", **several)["access_key_id"] == "k2"
    assert settings("az://c", **several) == {"account_name": "acct", "account_key": "key"}
    for broken in ("[]", "no", '{"gs": {"": 3}}'):
        path.write_text(broken)
        with pytest.raises(ServingError, match=r"TRITON_CLOUD_CREDENTIAL_PATH=.*several.json"):
            settings("gs://one", **several)


def test_stores_are_opened_with_what_was_found(tmp_path: Path) -> None:
    for given, environ in (
        ("gs://bucket/x", {}),
        ("as://acct/container/x", {"AZURE_STORAGE_KEY": "a2V5"}),
        ("s3://https://host:1/bucket", {"HOME": str(tmp_path)}),
    ):
        place = Location.parse(given)
        assert place is not None
        stores.open_store(place, environ)
    place = Location.parse("gs://bucket/x")
    assert place is not None
    several = tmp_path / "several.json"
    several.write_text('{"gs": {"": "/nowhere.json"}}')
    with pytest.raises(ServingError, match="'gs://bucket/x' can't be opened: No such file or directory"):
        stores.open_store(place, {"TRITON_CLOUD_CREDENTIAL_PATH": str(several)})


def test_watch_wants_folders(memory: Memory, tmp_path: Path) -> None:
    async def main() -> None:
        memory.model("m", 1, BASE)
        repository: StoredRepository = memory.open(tmp_path)
        async with serving(repository) as kernel:
            with pytest.raises(ServingError, match="'gs://bucket/models' can't be watched: only folders are"):
                kernel.watch()

    run(main())
