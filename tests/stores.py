"""Stores on loopback, as fixtures: `site`, `s3`, `google`, `hub`, and `store`, each of them.

Each has a `root` for URLs, and `push` puts a file there as somebody else does.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback import Site, serving
from make_traces import drift, metadata, write
from store_servers import S3, Google, Hub

from hisparse_sim.traces import retries


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of this machine's disk, which tests put into stores as t.parquet."""
    parts = [drift(layer=layer, steps=60, top_k=32) for layer in range(4)]
    path = tmp_path_factory.mktemp("local") / "t.parquet"
    return write(path, parts, metadata(top_k=32))


def _emptied(server: Any, system: Any) -> Any:
    for path in system.find("bucket"):
        system.rm(path)
    system.invalidate_cache()
    server.forget()
    return server


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_PAUSES_S", (0.0, 0.0, 0.0, None))


@pytest.fixture
def site(no_pauses: None) -> Iterator[Site]:
    pytest.importorskip("fsspec", reason="needs the extra [remote]")
    pytest.importorskip("aiohttp", reason="needs the extra [remote]")
    site = Site()
    with serving(site):
        yield site


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    pytest.importorskip("s3fs", reason="needs the extra [remote]")
    moto = pytest.importorskip("moto.server", reason="needs moto")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    between = S3(server.get_host_and_port())
    with serving(between):
        yield between
    server.stop()


@pytest.fixture
def s3(s3_server: S3, no_pauses: None, monkeypatch: pytest.MonkeyPatch) -> S3:
    import fsspec

    for name, value in {
        "AWS_ENDPOINT_URL": s3_server.url,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    }.items():
        monkeypatch.setenv(name, value)
    system = fsspec.filesystem("s3")
    if not system.exists("bucket"):
        system.mkdir("bucket")
    emptied: S3 = _emptied(s3_server, system)
    return emptied


@pytest.fixture(scope="session")
def google_server() -> Iterator[Google]:
    with pytest.MonkeyPatch.context() as environment:
        # Else it looks for credentials in the network: buckets of another kind need them.
        environment.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        pytest.importorskip("gcsfs", reason="needs the extra [remote]")
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="needs an emulator")
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    server.start()
    google = Google(server._api._httpd.server_address)
    with serving(google):
        yield google
    server.stop()


@pytest.fixture
def google(google_server: Google, no_pauses: None, monkeypatch: pytest.MonkeyPatch) -> Google:
    import fsspec

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", google_server.url)
    fsspec.get_filesystem_class("gs").clear_instance_cache()
    emptied: Google = _emptied(google_server, fsspec.filesystem("gs"))
    return emptied


@pytest.fixture
def hub(no_pauses: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    client = pytest.importorskip("huggingface_hub", reason="needs the extra [remote]")
    from fsspec.config import conf

    hub = Hub()
    monkeypatch.setitem(conf, "hf", {"endpoint": hub.url, "token": False})
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    client.HfFileSystem.clear_instance_cache()
    with serving(hub):
        yield hub
    client.HfFileSystem.clear_instance_cache()


@pytest.fixture(params=["site", "s3", "google", "hub"])
def store(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["s3", "google", "hub"])
def writable(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)
