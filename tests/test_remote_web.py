"""Traces behind http:// and https://, from web servers on loopback, with the faults of such."""

import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from loopback import Site
from make_traces import assert_reads_as

from hisparse_sim.cli import cli
from hisparse_sim.traces import TraceError, open_trace
from hisparse_sim.traces.commands.options import expand
from hisparse_sim.traces.remote import Url

pytest.importorskip("fsspec", reason="needs the extra [remote]")
pytest.importorskip("aiohttp", reason="needs the extra [remote]")

pytest_plugins = ["stores"]


@pytest.fixture
def site(site: Site, local: Path) -> Site:
    site.files["/t.parquet"] = local.read_bytes()
    return site


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def assert_refused(url: str, said: str) -> None:
    """Check that a command says of a URL, in one sentence, what is wrong, and exits with 1."""
    refused = run("trace", "info", url)
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"Error: {url} ")
    assert said in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_trace_is_read_from_a_web_server(site: Site, local: Path) -> None:
    assert_reads_as(f"{site.url}/t.parquet?token=a/b", local)
    asked = [each for each in site.asked if each.method == "GET"]
    assert all(each.range and each.path == "/t.parquet?token=a/b" for each in asked)


def test_only_the_columns_asked_for_are_fetched(site: Site) -> None:
    trace = open_trace(f"{site.url}/t.parquet")
    site.forget()
    trace.read(trace.parts[2])
    group = trace._groups.metadata.row_group(2)  # type: ignore[attr-defined]
    sizes = [group.column(number).total_compressed_size for number in range(5)]
    assert [each.method for each in site.asked] == ["GET"] * 5  # request ... positions
    assert site.bytes_read == sum(sizes)


def test_redirects_are_followed(site: Site, local: Path) -> None:
    site.moved = {"/a/t.parquet": f"{site.url}/b/t.parquet", "/b/t.parquet": "/t.parquet"}
    assert_reads_as(f"{site.url}/a/t.parquet", local)
    site.moved = {"/a/t.parquet": "/a/t.parquet"}
    assert_refused(f"{site.url}/a/t.parquet", "cannot be read: ")


@pytest.mark.parametrize("fault", ["500", "cut"])
def test_faults_that_pass_are_passed(site: Site, local: Path, fault: str) -> None:
    site.faults = {fault: 3}
    assert_reads_as(f"{site.url}/t.parquet", local)
    assert site.faults[fault] == 0


def test_a_busy_server_is_asked_for_the_size_again(site: Site, local: Path) -> None:
    site.faulty_methods, site.faults = ("HEAD", "GET"), {"500": 6}  # HEAD and GET each time
    assert_reads_as(f"{site.url}/t.parquet", local)
    assert [each.method for each in site.asked[:7]] == ["HEAD", "GET"] * 3 + ["HEAD"]


def test_a_slow_server_is_waited_for(site: Site, local: Path) -> None:
    site.delay_s = 0.02
    assert_reads_as(f"{site.url}/t.parquet", local)


def test_faults_that_stay_are_one_sentence(site: Site) -> None:
    url = f"{site.url}/t.parquet"
    trace = open_trace(url)
    for fault, said in [("500", "500, message="), ("cut", "Response payload is not completed")]:
        site.forget()
        site.faults = {fault: 10**6}
        with pytest.raises(TraceError, match=f"^{url} cannot be read: {said}"):
            trace.read(trace.parts[0])
        assert len(site.asked) == 4 * 5  # four times five columns
        assert_refused(url, "cannot be read: ")
    site.faults, site.faulty_methods = {"500": 10**6}, ("HEAD", "GET")
    assert_refused(url, "cannot be read: 500, message=")
    site.faults = {"changed": 10**6}
    with pytest.raises(TraceError, match="checksum"):
        trace.read(trace.parts[0])


def test_what_is_not_there_is_asked_for_once(site: Site) -> None:
    assert_refused(f"{site.url}/none.parquet", "does not exist")
    assert [each.method for each in site.asked] == ["HEAD", "GET"]
    site.server.shutdown()
    site.server.server_close()
    assert_refused(f"{site.url}/t.parquet", "cannot be read: Cannot connect to host 127.0.0.1")


def test_a_server_that_ignores_ranges_is_told_at_once(site: Site) -> None:
    site.files["/t.parquet"] += bytes(1 << 24)  # more than a socket takes
    site.ignores_ranges = True
    assert_refused(f"{site.url}/t.parquet", "the server sends whole files only")
    assert len(site.asked) == 2  # the size, and the last byte


def test_a_server_that_tells_no_size(site: Site) -> None:
    site.ignores_ranges, site.tells_sizes = True, False
    assert_refused(f"{site.url}/t.parquet", "the server does not tell how large it is")


def test_globs_and_folders_by_the_links_of_a_page(site: Site) -> None:
    whole = site.files.pop("/t.parquet")
    for name in ("a.parquet", "b.parquet", "_SUCCESS", "x/c.parquet", "_tmp/d.parquet", "e.txt"):
        site.files[f"/set/{name}"] = whole
    names = [f"{site.url}/set/{name}" for name in ("a.parquet", "b.parquet", "x/c.parquet")]
    assert expand([f"{site.url}/set/"]) == names
    assert expand([f"{site.url}/set/*.parquet"]) == names[:2]
    assert expand([f"{site.url}/set/*/*.parquet"]) == [f"{site.url}/set/_tmp/d.parquet", names[2]]
    none = run("trace", "info", f"{site.url}/set/*.arrow")
    assert (none.exit_code, "no file matches" in none.stderr) == (2, True)
    site.faulty_methods, site.faults = ("GET",), {"500": 3}
    assert expand([f"{site.url}/set/*.parquet"]) == names[:2]
    site.faults = {"500": 4}
    with pytest.raises(TraceError, match=r"/set/ cannot be read: 500, message="):
        expand([f"{site.url}/set/"])


def test_a_query_belongs_to_a_file(site: Site, local: Path) -> None:
    site.push("set/t.parquet", local.read_bytes())
    assert_reads_as(f"{site.url}/set/t.parquet?key=a/", local)
    for url in (f"{site.url}/set/?token=secret", f"{site.url}/set/?token=secret/"):
        refused = run("trace", "info", url)
        assert (refused.exit_code, refused.stderr) == (
            1,
            f"Error: {site.url}/set/?... is a web page: the query of a folder does not reach its"
            " files; name each with its own\n",
        )


def test_nothing_is_written_to_a_web_server(site: Site, local: Path) -> None:
    for command in ("sample", "sweep"):
        words = ["trace", "sample"] if command == "sample" else ["sweep", "--buffer", "64"]
        refused = run(*words, local, "-o", f"{site.url}/out.parquet")
        assert (refused.exit_code, "a web server takes no files" in refused.stderr) == (1, True)
    assert site.asked == []


def test_https_needs_a_certificate_that_is_trusted(
    site: Site, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.config import conf

    certificate, key = _certificate(tmp_path)
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(certificate, key)
    site.server.socket = ours.wrap_socket(site.server.socket, server_side=True)
    url = f"https://localhost:{site.server.server_port}/t.parquet"
    assert_refused(url, "certificate verify failed")
    trusting = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setitem(conf, "https", {"ssl": trusting})
    assert_reads_as(url, local)
    assert Url(url).is_file()


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate of localhost that signs itself, and its key."""
    from datetime import UTC, datetime, timedelta

    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths
