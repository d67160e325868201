"""Preparations of a member before its command: the commit of a git repository that a job runs, and the
packages that it installs.

A member starts `PROGRAM`, which fetches and installs into folders of its own, and becomes the command. What
is there already, after a restart, is used again. Values in, values out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from allaboard.job.training_job import PACKED

TOKEN = "ALLABOARD_CODE_TOKEN"
"""Variable with the password of a private repository. `PROGRAM` takes it away before the command starts."""
TOKEN_KEY = "token"
"""Key of the secret that holds it."""
PROGRAM = r"""
import hashlib, json, os, shutil, subprocess, sys, tarfile, time
given, command = json.loads(sys.argv[1]), sys.argv[2:]
NO_CODE, NO_PACKAGES = "the code cannot be fetched", "the packages cannot be installed"
base, token = given["folder"], os.environ.pop("ALLABOARD_CODE_TOKEN", "")
def fail(text):
    sys.stderr.write("allaboard: " + text + "\n")
    sys.exit(1)
def run(words, what, **more):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        process = subprocess.Popen(words, **pipes, **more)
    except OSError as error:
        fail(what + ": " + words[0] + " cannot be started here: " + str(error.strerror))
    last = []
    for line in process.stdout:
        text = line.decode("utf-8", "replace")
        sys.stderr.write(text)
        # uv breaks a sentence into lines.
        last = (last + text.split())[-40:]
    return process.wait(), " ".join(last)[-300:]
def passed_over(log):
    # pip tells in its log alone why it passed over an index.
    last = ""
    try:
        with open(log, errors="replace") as file:
            for line in file:
                if "Could not fetch URL" in line:
                    last = line[line.index("Could not"):].strip()[-300:] + "; "
        os.remove(log)
    except OSError:
        pass
    return last
def ready(folder):
    if os.path.exists(os.path.join(folder, ".allaboard")):
        return True
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return False
def done(folder):
    open(os.path.join(folder, ".allaboard"), "w").close()
def git(folder, *words):
    environ = dict(os.environ, GIT_TERMINAL_PROMPT="0", GIT_ASKPASS="true")
    start = ["git", "-C", folder, "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false"]
    if token:
        environ["ALLABOARD_CODE_TOKEN"] = token
        server = "/".join(given["git"].split("/")[:3])
        helper = "!f() { echo username=x-access-token; echo \"password=$ALLABOARD_CODE_TOKEN\"; }; f"
        name = "credential." + server + ".helper="
        start += ["-c", name, "-c", name + helper]
    return run(start + list(words), NO_CODE, env=environ)
folder = os.getcwd()
if "git" in given:
    url, commit, ref = given["git"], given["commit"], given.get("ref")
    folder = os.path.join(base, "code-" + commit[:12])
    if not ready(folder):
        tries = [["--depth", "1", url, commit]] + ([[url, ref]] if ref else [])
        tries.append(["--tags", url, "+refs/heads/*:refs/remotes/origin/*"])
        code, said = git(folder, "init", "-q")
        for words in tries if code == 0 else []:
            code, said = git(folder, "fetch", "-q", *words)
            if code == 0:
                code, said = git(folder, "checkout", "-q", "--detach", commit)
            if code == 0:
                break
        if code:
            fail(NO_CODE + ": commit " + commit + " of " + url + ": " + said)
        done(folder)
if "archive" in given:
    place, sha256 = given["archive"], given["sha256"]
    folder = os.path.join(base, "code-" + sha256[:12])
    if not ready(folder):
        packed = os.path.join(base, "code.tar.gz")
        try:
            if "://" not in place:
                shutil.copyfile(place, packed)
            else:
                modules = given.get("modules", "")
                if os.path.exists(modules) and sys.version_info >= (3, 8):
                    sys.path.append(modules)
                    if sys.version_info < (3, 11):
                        __import__("old_python").complete()
                from allaboard.storage import open_store
                from pathlib import Path
                above, _, name = place.rpartition("/")
                open_store(above).download(name, Path(packed))
            with open(packed, "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
            if digest != sha256:
                fail(NO_CODE + ": " + place + " holds other bytes than were packed")
            with tarfile.open(packed) as tar:
                tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
            os.remove(packed)
        except ImportError:
            text = "is read by allaboard, or by the helper and a Python 3.8 or later: this image has neither"
            fail(NO_CODE + ": " + place + " " + text)
        except Exception as error:
            fail(NO_CODE + ": " + place + ": " + str(error)[:300])
        done(folder)
if given.get("packages"):
    target = os.path.join(base, "packages-" + given["digest"])
    if not ready(target):
        lines, log = os.path.join(base, "requirements.txt"), os.path.join(base, "pip.log")
        with open(lines, "w") as file:
            file.write("\n".join(given["packages"]) + "\n")
        index = ["--index-url", given["index"]] if given.get("index") else []
        pip = [sys.executable, "-m", "pip"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if subprocess.call(pip + ["--version"], **quiet) == 0:
            words = pip + ["install", "-q", "--no-input", "--disable-pip-version-check", "--log", log]
        elif shutil.which("uv"):
            words = ["uv", "pip", "install", "-q", "--python", sys.executable]
        else:
            fail(NO_PACKAGES + ": there is neither pip nor uv")
        code, said = run(words + ["--target", target, "-r", lines] + index, NO_PACKAGES, cwd=folder)
        if code:
            fail(NO_PACKAGES + ": " + passed_over(log) + said)
        done(target)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = before + os.pathsep + target if before else target
    os.environ["PATH"] = os.path.join(target, "bin") + os.pathsep + os.environ.get("PATH", os.defpath)
    if os.path.basename(command[0]) == "sshd":
        # Ranks of MPI start in its sessions, which have none of its variables.
        pairs = [name + '="' + os.environ[name] + '"' for name in ("PATH", "PYTHONPATH")]
        command += ["-o", "SetEnv=" + " ".join(pairs)]
def hosts_in(file):
    try:
        with open(file) as lines:
            return [line.split()[0].split(":")[0] for line in lines if line.strip()]
    except OSError:
        return []
probe = "ssh -o BatchMode=yes -o ConnectTimeout=5 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
nobody, end = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}, time.time() + 300
for host in hosts_in(given["hostfile"]) if "hostfile" in given and shutil.which("ssh") else ():
    # Workers answer once they are prepared, too; mpirun asks for some seconds only.
    while time.time() < end and subprocess.call(probe.split() + [host, "true"], **nobody):
        time.sleep(1)
os.chdir(folder)
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.stderr.write("allaboard: " + command[0] + " cannot be started: " + str(error.strerror) + "\n")
    sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
"""
"""Program that a member starts with; standard library of Python 3.6 and later."""


def setup_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """Preparations that a checked job asks for; empty where it asks for none."""
    code, packages = job.get("code"), job.get("packages")
    setup: dict[str, Any] = {}
    if isinstance(code, Mapping):
        setup |= {name: code[name] for name in ("git", "ref", "commit") if name in code}
        if "digest" in code:
            setup |= {"archive": archive_of(code), "sha256": code["digest"]}
    if packages is not None:
        stated = packages if isinstance(packages, Mapping) else {"install": packages}
        setup |= {"packages": list(stated.get("install", ()))}
        setup |= {"index": stated["index"]} if "index" in stated else {}
    return setup


def archive_of(code: Mapping[str, Any]) -> str:
    """The place of a packed folder."""
    return f"{code.get('store', PACKED).rstrip('/')}/{code['digest']}.tar.gz"


def reads_bucket(setup: Mapping[str, Any]) -> bool:
    """True if a member reads its code from a bucket."""
    return "://" in setup.get("archive", "")


def prepared(setup: Mapping[str, Any], folder: str, command: Sequence[str]) -> list[str]:
    """The command of a member that prepares first, in ``folder``; the command itself where there is none.
    ``modules`` of the setup: an archive with those that read a bucket, for an image without allaboard.
    """
    if not setup or not command:
        return [*command]
    import hashlib

    digest = hashlib.sha256(json.dumps([setup.get("packages"), setup.get("index")]).encode()).hexdigest()[:12]
    given = json.dumps({**setup, "folder": folder, "digest": digest})
    return ["python", "-c", PROGRAM, given, *command]


def prepared_in_pod(setup: Mapping[str, Any], folder: str, command: Sequence[str]) -> list[str]:
    """The same for a pod, whose kubelet replaces ``$(NAME)`` in the command itself alone."""
    started = prepared(setup, folder, command)
    own = len(started) - len(command)
    return [*(word.replace("$", "$$") for word in started[:own]), *command]


def secret_of(job: Mapping[str, Any]) -> str | None:
    """Name of the secret with the password of the job's repository."""
    code = job.get("code")
    return code.get("secret") if isinstance(code, Mapping) else None
