#!/usr/bin/env bash
# `hf cache prune` deletes the part file of a download that is still running. That download goes on to its last byte,
# and only then it fails.
#
# Seen with huggingface_hub 2.4.0 from PyPI, on Linux. While `hf download` of another process is fetching a file, `hf
# cache ls` calls its part file an incomplete download and says that `hf cache prune` removes it. `prune` unlinks the
# file and reports success, although the downloading process holds the lock of that file (`.locks/`). `hf download`
# writes on into the unlinked file. When it has received everything, it cannot find the file to move it into the cache,
# and nothing of the download is left:
#
#   hf cache ls: 1 incomplete download(s), remove with 'hf cache prune'
#   without prune: exit status 0, 3145728 of 3145728 bytes sent, 1 file(s) in the snapshot
#   hf cache prune --yes: exit status 0, Deleted 1 incomplete download(s)
#   with prune: exit status 1, 3145728 of 3145728 bytes sent, 0 file(s) in the snapshot, FileNotFoundError
#
# So no job may prune a cache that another job fills: with a file of 40 GB the error comes after 40 GB. Nothing can be
# resumed either, as each attempt has a part file with a random name.
#
# The script starts a small hub on 127.0.0.1. It exits with 1 if the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
# click, httpx and the others don't matter here: any version that huggingface_hub accepts is used.
"$folder/venv/bin/pip" install --quiet --only-binary :all: huggingface_hub==2.4.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import glob, hashlib, http.server, os, subprocess, sys, threading

folder = sys.argv[1]
hf = os.path.join(folder, "venv/bin/hf")
file = os.urandom(3 << 20)
half = len(file) // 2
half_is_sent, may_go_on = threading.Event(), threading.Event()
sent = 0


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        is_file = "/resolve/" in self.path
        self.send_response(200 if is_file else 404)
        self.send_header("Content-Length", str(len(file)) if is_file else "0")
        self.send_header("ETag", f'"{hashlib.sha256(file).hexdigest()}"')
        self.send_header("X-Repo-Commit", "1" * 40)
        self.end_headers()
        return is_file

    def do_GET(self):
        global sent
        if not self.do_HEAD():
            return
        self.wfile.write(file[:half])
        self.wfile.flush()
        half_is_sent.set()
        may_go_on.wait(60)
        self.wfile.write(file[half:])
        sent = len(file)

    def log_message(self, *arguments):
        pass


hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=hub.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{hub.server_port}"


def run(home, *arguments):
    settings = {"HF_HOME": home, "HF_ENDPOINT": address, "HF_HUB_DISABLE_TELEMETRY": "1", "NO_COLOR": "1"}
    output = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([hf, *arguments], env=os.environ | settings, **output)


def part_files(home):
    return glob.glob(f"{home}/hub/models--*/blobs/*.incomplete")


results = []
for prunes in [False, True]:
    home = f"{folder}/home-{prunes}"
    sent = 0
    half_is_sent.clear()
    may_go_on.clear()
    download = run(home, "download", "someone/model", "model.gguf")
    half_is_sent.wait(60)
    while not part_files(home):
        assert download.poll() is None
    if prunes:
        prune = run(home, "cache", "prune", "--yes")
        line = next(line for line in prune.communicate()[0].splitlines() if "Deleted" in line)
        print(f"hf cache prune --yes: exit status {prune.returncode}, {line.split(';')[0].lstrip('✓ ')}")
    else:
        listing = run(home, "cache", "ls").communicate()[0]
        advises = "1 incomplete download(s)" in listing and "hf cache prune" in listing
        print("hf cache ls:", "1 incomplete download(s), remove with 'hf cache prune'" if advises else listing)
    may_go_on.set()
    output = download.communicate()[0]
    files = glob.glob(f"{home}/hub/models--*/snapshots/*/*")
    error = ", FileNotFoundError" if "FileNotFoundError" in output else ""
    print(
        f"{'with' if prunes else 'without'} prune: exit status {download.returncode}, {sent} of {len(file)} bytes sent,",
        f"{len(files)} file(s) in the snapshot{error}",
    )
    results.append((download.returncode, sent, len(files), error != ""))
expected = [(0, len(file), 1, False), (1, len(file), 0, True)]
sys.exit(0 if advises and prune.returncode == 0 and results == expected else 1)
PYTHON
