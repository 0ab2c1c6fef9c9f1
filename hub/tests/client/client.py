"""Runs Hugging Face's own client, for comparison with ours: `client.py fetch|find|prune|hold|tls ...`. The environment names the endpoint and the cache."""

import contextlib
import os
import socket
import ssl
import sys
import tempfile
import threading

import huggingface_hub
import trustme
from huggingface_hub.utils import WeakFileLock

REPOSITORY = "some/thing"
CACHE = os.environ["HF_HUB_CACHE"]


def fetch(*files):
    """Fetches each file, and then the whole repository. Prints their paths."""
    for file in files:
        print(huggingface_hub.hf_hub_download(REPOSITORY, file))
    print(huggingface_hub.snapshot_download(REPOSITORY))


def find(commit, *files):
    """As `fetch`, but without a request, in a cache that contains nothing else. Prints the paths."""
    for file in files:
        print(huggingface_hub.hf_hub_download(REPOSITORY, file, local_files_only=True))
    print(huggingface_hub.snapshot_download(REPOSITORY, local_files_only=True))
    cache = huggingface_hub.scan_cache_dir()
    assert not cache.warnings, cache.warnings
    [repository] = cache.repos
    assert repository.repo_id == REPOSITORY, repository
    [revision] = repository.revisions
    assert revision.commit_hash == commit and revision.refs == {"main"}, revision
    there = {os.path.relpath(it.file_path, revision.snapshot_path) for it in revision.files}
    assert there == set(files), there


def prune():
    """Removes the unfinished downloads that `hf cache prune` removes from the cache. Prints their names."""
    for file in sorted(huggingface_hub.scan_cache_dir().incomplete_files, key=lambda it: it.file_path):
        print(file.file_path.name)
        file.file_path.unlink()


def hold(etag):
    """Holds the lock of a blob as a download does, until a line comes."""
    lock = os.path.join(CACHE, ".locks", f"models--{REPOSITORY.replace('/', '--')}", f"{etag}.lock")
    os.makedirs(os.path.dirname(lock), exist_ok=True)
    with WeakFileLock(lock):
        print("held", flush=True)
        sys.stdin.readline()


def tls(port):
    """Serves the server at this port over https, until a line comes. Prints our port, and the file of an unknown authority."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(plain):
        with contextlib.suppress(OSError):  # A client that does not trust our certificate leaves.
            with context.wrap_socket(plain, server_side=True) as client:
                with socket.create_connection(("127.0.0.1", int(port))) as server, client.makefile("rb") as lines:
                    for line in lines:
                        server.sendall(line)
                        if line == b"\r\n":
                            break
                    while data := server.recv(65536):
                        client.sendall(data)

    def accept():
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "authority.pem")
        authority.cert_pem.write_to_path(file)
        print(listener.getsockname()[1], file, flush=True)
        sys.stdin.readline()


verb, *arguments = sys.argv[1:]
{"fetch": fetch, "find": find, "prune": prune, "hold": hold, "tls": tls}[verb](*arguments)
