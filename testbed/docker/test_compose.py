"""docker-compose.yml: one command brings everything up, with each of the two kinds of Compose that is here."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import tempfile
import unittest
import urllib.request

from engine import COMPLETE, PREFIX, RUN, TAG, Container, TooLate, docker, image, inspect, wait
from growing import Feed
from stage import fetch, free_port

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
# Compose 1.29 takes no /dev/null for that; without it, the .env of the user who runs the tests would count.
EMPTY = tempfile.NamedTemporaryFile(prefix=f"{RUN}-", suffix=".env")
# Shell command that restarts the engine.
RESTART_ENGINE = os.environ.get("FLEXFEED_RESTART_ENGINE")
SERVICES = {"postgres", "source", "relay", "console", "enrol", "receiver-a", "receiver-b"}


def kinds():
    """The commands of Compose that are here, by what they are called in the tests."""
    found = {}
    built = os.environ.get("FLEXFEED_COMPOSE", "")
    # `docker-compose` by its path may be of either version.
    for command in (["docker", "compose"], [built], ["docker-compose"], ["/usr/bin/docker-compose"]):
        try:
            done = subprocess.run([*command, "version", "--short"], capture_output=True, text=True, check=False)
        except (FileNotFoundError, PermissionError):
            continue
        if done.returncode == 0:
            found.setdefault("v1" if done.stdout.startswith("1.") else "v2", command)
    return found


KINDS = kinds()


def base():
    """The base of our images, on which that of PostgreSQL is made as well."""
    local = docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "flexfeed-base").split()
    return local[0] if local else "debian:bookworm-slim"


def document(name, section):
    """A section of a document."""
    with open(f"{ROOT}/docs/{name}", encoding="utf-8") as file:
        return file.read().split(f"\n## {section}\n")[1].split("\n## ")[0]


class Console:
    """The console's API, as a browser that has followed the setup link."""

    def __init__(self, link):
        base, token = link.split("setup#")
        self.base = base.rstrip("/")
        self.cookie = None
        self.csrf = None
        body = {"name": "ann", "password": "a long word for tests", "token": token}
        self.csrf = self.post("/api/v1/setup", body)["csrf"]

    def _ask(self, path, body=None):
        request = urllib.request.Request(self.base + path, data=body and json.dumps(body).encode())
        request.add_header("Origin", self.base)
        if body:
            request.add_header("Content-Type", "application/json")
        if self.cookie:
            request.add_header("Cookie", self.cookie)
            request.add_header("X-CSRF-Token", self.csrf or "")
        with urllib.request.urlopen(request, timeout=60) as answer:
            if cookie := answer.headers.get("Set-Cookie"):
                self.cookie = cookie.split(";")[0]
            return json.loads(answer.read() or "null")

    def get(self, path):
        """Asks."""
        return self._ask(path)

    def post(self, path, body):
        """Acts."""
        return self._ask(path, body)

    def rungs(self):
        """The rung of each receiver, by name."""
        page = self.get("/api/v1/receivers")
        return {one["name"]: one["rung"] for one in page["items"]}


class Project:
    """The services of docker-compose.yml under a name of their own, with a feed of this process and free ports."""

    def __init__(self, command, services=(), settings=None):
        self.command = command
        self.feed = Feed()
        self.feed.add(20)
        gateway = inspect("bridge", "network")["IPAM"]["Config"][0].get("Gateway", "172.17.0.1")
        url = f"http://{gateway}:{self.feed.port}"
        self.console, self.a, self.b = free_port(), free_port(), free_port()
        self.settings = {
            "COMPOSE_PROJECT_NAME": RUN,
            "FLEXFEED_IMAGE_PREFIX": PREFIX,
            "FLEXFEED_TAG": TAG,
            "POSTGRES_BASE": base(),
            "SOURCE_PORT": str(free_port()),
            "RELAY_PORT": str(free_port()),
            "CONSOLE_PORT": str(self.console),
            "CONSOLE_URL": f"http://127.0.0.1:{self.console}",
            "RECEIVER_A_PORT": str(self.a),
            "RECEIVER_B_PORT": str(self.b),
            "FEED": f"{url}/feed.atom",
            "MORE_CHANNELS": f"news,feed={url}/challenge",
            "ALLOW_PRIVATE_FEEDS": "true",
            **(settings or {}),
        }
        # The default, unless this engine has other addresses than most.
        if gateway != "172.17.0.1":
            self.settings["PUBLIC_ADDRESS"] = gateway
        self.services = services

    def compose(self, *arguments, check=True, timeout=240):
        """Runs Compose; returns all that it printed."""
        done = subprocess.run(
            [*self.command, "--env-file", EMPTY.name, "-f", f"{ROOT}/docker-compose.yml", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **self.settings},
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{arguments}: {done.stdout}\n{done.stderr}")
        return done.stdout + done.stderr

    def __enter__(self):
        # ./dev images has built ours; this one is Compose's alone.
        self.compose("build", "postgres", timeout=600)
        self.compose("up", "-d", *self.services)
        return self

    def __exit__(self, kind, *_):
        if kind:
            print(self.compose("ps", "-a", check=False))
            print(self.compose("logs", "--tail", "15", check=False))
        # As the documents say it.
        line = re.search(r"^    docker compose (.* down -v .*)$", document("install.md", "Docker Compose"), re.M)
        self.compose(*line.group(1).split(), "--timeout", "10", check=False)
        self.feed.close()
        if not kind and (left := self.left()):
            raise AssertionError(f"`{line.group(1)}` has left behind: {left}")

    def left(self):
        """Returns its containers."""
        ours = ["--filter", f"label=com.docker.compose.project={RUN}", "--format"]
        listed = [docker("ps", "-a", *ours, "{{.Names}}")]
        listed += [docker(kind, "ls", *ours, "{{.Name}}") for kind in ("volume", "network")]
        return " ".join(listed).split()

    def setup_link(self):
        """Returns the console's log."""
        found = wait(
            "a link in the console's log",
            lambda: re.search(r"http://\S+/setup#\S+", self.compose("logs", "console")),
        )
        return found.group(0)

    def container(self, service):
        """The container of a service."""
        named = ["--filter", f"label=com.docker.compose.service={service}"]
        project = ["--filter", f"label=com.docker.compose.project={RUN}"]
        return Container(docker("ps", "-aq", *project, *named))

    def entries(self, port):
        """Returns what a receiver serves."""
        return fetch(f"http://127.0.0.1:{port}/feeds/lore.atom")


def rung(port):
    """Returns a receiver's rung."""
    status = json.loads(fetch(f"http://127.0.0.1:{port}/status.json"))
    return status["connected"] and status["channels"][0]["rung"]


def has_all(project, port):
    """Whether a receiver's Atom file has all entries that there are."""
    document = project.entries(port)
    return all(f"<id>{one}</id>" in document for one in project.feed.all()[-300:])


class Written(unittest.TestCase):
    """Properties visible without starting anything."""

    def test_both_read_it(self):
        """All services are there, those of the profile on request, and every variable is in .env.example, with its default."""
        self.assertTrue(KINDS, "there is no Compose here: apt-get install docker-compose")
        for kind, command in KINDS.items():
            with self.subTest(kind):
                plain = [*command, "--env-file", EMPTY.name, "-f", f"{ROOT}/docker-compose.yml"]
                listed = subprocess.run([*plain, "config", "--services"], capture_output=True, text=True, check=True)
                # 1.29 lists those of profiles in any case; it does not start them.
                also = {"prometheus", "grafana"} if kind == "v1" else set()
                self.assertEqual(set(listed.stdout.split()), SERVICES | also)
                profile = [*plain, "--profile", "monitoring", "config", "--services"]
                listed = subprocess.run(profile, capture_output=True, text=True, check=True)
                self.assertEqual(set(listed.stdout.split()), SERVICES | {"prometheus", "grafana"})
        with open(f"{ROOT}/docker-compose.yml", encoding="utf-8") as file:
            used = dict(re.findall(r"\$\{(\w+):?-([^}]*)\}", file.read()))
        with open(f"{ROOT}/.env.example", encoding="utf-8") as file:
            explained = dict(re.findall(r"^#(\w+)=(.*)$", file.read(), re.M))
        self.assertEqual(explained, used)

    def test_logs_have_an_end(self):
        """Those of every service, whatever else it has in common with others."""
        self.assertTrue(KINDS, "there is no Compose here: apt-get install docker-compose")
        for kind, command in KINDS.items():
            with self.subTest(kind):
                plain = [*command, "--env-file", EMPTY.name, "-f", f"{ROOT}/docker-compose.yml", "--profile", "monitoring", "config"]
                read = subprocess.run(plain, capture_output=True, text=True, check=True).stdout
                bounded = re.findall(r"^    logging:\n      driver: local$", read, re.M)
                self.assertEqual(len(bounded), len(SERVICES | {"prometheus", "grafana"}), read)

    def test_mounted_files_are_there(self):
        """Docker would make folders in the place of those that are not."""
        with open(f"{ROOT}/docker-compose.yml", encoding="utf-8") as file:
            mounted = re.findall(r"- (\./\S+?):/", file.read())
        self.assertGreater(len(mounted), 3)
        for path in mounted:
            self.assertTrue(os.path.isfile(os.path.join(ROOT, path)), path)


class Up(unittest.TestCase):
    """All of it, started."""

    def play(self, command):
        """The whole path of a new user."""
        with Project(command) as project:
            # The receivers of the file have enrolled by themselves and are on the flow.
            link = project.setup_link()
            self.assertTrue(link.startswith(f"http://127.0.0.1:{project.console}/"), link)
            console = Console(link)
            names = {"receiver-a", "receiver-b"}
            wait(
                "both receivers on amt in the dashboard",
                lambda: {n for n, rung in console.rungs().items() if rung == "amt"} == names,
                90,
            )
            # The dashboard says that one feed's server wants to know whether a person asks; the other one flows. A poll
            # that took too long is tried again.
            wait("the states of both feeds", lambda: self.feeds_are_reported(self.states(console)), 180)
            wait("all entries at both", lambda: all(has_all(project, p) for p in (project.a, project.b)))
            with self.line_of_the_dashboard(project, console) as outside:
                self.killed_in_turn(project, console, outside)
                self.restarted_in_any_order(project, console, outside)
            # Another `up` changes nothing, and makes no other link.
            before = self.tokens(console)
            project.compose("up", "-d")
            self.assertEqual(self.tokens(console), before)
            self.assertFalse(project.container("prometheus").name, "a service of a profile that was not requested runs")
            self.restored(project)
            self.key_changed(project)

    def feeds_are_reported(self, states):
        """Whether the challenged feed is reported as such, and the other one as well."""
        if states.get("news") != "challenged" or states.get("lore") not in ("ok", "not-modified"):
            raise ValueError(f"the feeds are {states}")
        return True

    def states(self, console):
        """Returns the state of each channel's feed."""
        return {feed["channel"]: feed["state"] for feed in console.get("/api/v1/feeds")["items"]}

    def tokens(self, console):
        """Returns the number of tokens."""
        return len(console.get("/api/v1/enrolments")["items"])

    @contextlib.contextmanager
    def line_of_the_dashboard(self, project, console):
        """The command of the page "add a receiver" runs as shown, but for the name, the port and the volume. It is in Docker's own
        network, outside of those of the file. Gives its port."""
        made = console.post("/api/v1/enrolments", {"label": "test", "channels": [], "limit": 1, "expires_ms": None})
        line = shlex.split(made["docker_run"])
        port = free_port()
        line[line.index("127.0.0.1:8080:8080")] = f"127.0.0.1:{port}:8080"
        line[line.index("feeds:/data")] = f"{RUN}-feeds:/data"
        line[line.index("flexfeed/receiver")] = image("receiver")
        name = f"{RUN}-line"
        subprocess.run([*line[:2], "--name", name, "--hostname", "by-line", *line[2:]], check=True, stdout=subprocess.DEVNULL)
        try:
            wait("its entries", lambda: has_all(project, port))
            wait("it is on amt in the dashboard", lambda: console.rungs().get("by-line") == "amt", 90)
            yield port
        finally:
            docker("rm", "-f", name)
            docker("volume", "rm", f"{RUN}-feeds")

    def all_is_well(self, project, console, outside, after):
        """New entries come to all three receivers, and then all are on amt, by what they and the dashboard say. Who has what came
        afterwards does not say any more what was before."""
        project.feed.add(30)
        ports = (project.a, project.b, outside)
        wait(f"all entries at all three after {after}", lambda: all(has_all(project, port) for port in ports), 300)
        wait(f"all three on amt after {after}", lambda: all(rung(port) == "amt" for port in ports), 300)
        wait(
            f"all three on amt in the dashboard after {after}",
            lambda: [console.rungs().get(name) for name in ("receiver-a", "receiver-b", "by-line")] == ["amt"] * 3,
            300,
        )

    def killed_in_turn(self, project, console, outside):
        """Source and relay die and are started again: everything is as before, and nothing is missing."""
        for service in ("source", "relay"):
            one = project.container(service)
            one.kill()
            project.feed.add(30)
            one.start()
            self.all_is_well(project, console, outside, f"the end of the {service}")

    def restarted_in_any_order(self, project, console, outside):
        """Each of the two stands for itself: whichever comes first, and whatever address it then has, they find each other again."""
        both = [project.container("source").name, project.container("relay").name]
        docker("restart", "-t", "30", both[0])
        self.all_is_well(project, console, outside, "a restart of the source")
        docker("restart", "-t", "30", both[1])
        self.all_is_well(project, console, outside, "a restart of the relay")
        for order in (both, both[::-1]):
            docker("stop", "-t", "30", *both)
            docker("start", *order)
            self.all_is_well(project, console, outside, "a restart of both")
        if RESTART_ENGINE:
            # As after a restart of the machine: all at once, without regard to dependencies.
            subprocess.run(RESTART_ENGINE, shell=True, check=True, timeout=600)
            wait("the engine answers", lambda: docker("version"), 300)
            self.all_is_well(project, console, outside, "a restart of the engine")

    def restored(self, project):
        """The database is lost, and then its volume, and comes back from a backup, by the lines of docs/install.md: the same
        receivers go on."""
        lines = re.findall(r"^    docker (.*)$", document("install.md", "Backup and restore"), re.M)
        backup, _, *lost = lines
        database, volume = lost[:5], lost[5:10]
        self.follow(project, [backup])
        for lines in (database, volume):
            self.follow(project, lines)
            listing = ("exec", "-T", "source", "/usr/bin/flexfeed-source", "receiver", "list")

            def known(listing=listing):
                output = project.compose(*listing, check=False)
                return "receiver-a" in output and "receiver-b" in output

            wait("the receivers are known as before", known)
            project.feed.add(30)
            wait("new entries at both", lambda: all(has_all(project, p) for p in (project.a, project.b)), 120)

    def follow(self, project, lines):
        """Does as the lines of a document say."""
        for line in lines:
            if line.startswith("volume rm "):
                docker("volume", "rm", line.removeprefix("volume rm ").strip('"').replace('$(basename "$PWD")', RUN))
                continue
            # Compose 2 asks for a terminal where there is none.
            line = re.sub(r"^(exec|run) ", r"\1 -T ", line.removeprefix("compose "))
            project.compose(*shlex.split(line))

    def key_changed(self, project):
        """The source gets another key by the lines of docs/operations.md, and starts with it: receivers that knew of it go on."""
        lines = re.findall(r"^    (.*)$", document("operations.md", "Certificates and pins"), re.M)
        with tempfile.TemporaryDirectory() as folder:

            def shell(line):
                line = line.replace("docker compose", '"$@"')
                command = [*project.command, "--env-file", EMPTY.name, "-f", f"{ROOT}/docker-compose.yml"]
                environment = {**os.environ, **project.settings}
                done = subprocess.run(
                    ["sh", "-euc", line, "sh", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
                )
                self.assertEqual(done.returncode, 0, f"{line}: {done.stdout}{done.stderr}")
                return done.stdout

            made = [line for line in lines if line.startswith("openssl ")]
            project.settings["NEXT_PIN"] = "sha256:" + [shell(line) for line in made][-1].strip()
            announced = lines.index("docker compose up -d")
            for line in lines[announced : announced + 2]:
                shell(line)
            wait("both are connected", lambda: all(rung(port) for port in (project.a, project.b)), 90)
            for line in lines[announced + 2 : announced + 4]:
                shell(line)
        source = project.container("source")
        source.wait_for("has another key")
        docker("restart", "-t", "30", source.name)
        project.feed.add(30)
        wait("new entries at both", lambda: all(has_all(project, p) for p in (project.a, project.b)), 120)

    @unittest.skipUnless("v2" in KINDS or COMPLETE, "Compose 2 is not here")
    def test_v2(self):
        """With Compose 2."""
        self.assertIn("v2", KINDS, "Compose 2 is not here, as `docker compose` or by FLEXFEED_COMPOSE")
        self.play(KINDS["v2"])

    @unittest.skipUnless("v1" in KINDS or COMPLETE, "docker-compose 1.29 is not here")
    def test_v1(self):
        """With docker-compose 1.29."""
        self.assertIn("v1", KINDS, "docker-compose 1.29 is not here: apt-get install docker-compose")
        self.play(KINDS["v1"])

    @unittest.skipUnless(KINDS or COMPLETE, "there is no Compose here")
    def test_without_the_relay_it_is_noticed(self):
        """Without the service `relay` no receiver is on amt: the tests above depend on it."""
        self.assertTrue(KINDS, "there is no Compose here")
        command = next(iter(KINDS.values()))
        wanted = sorted(SERVICES - {"relay", "receiver-b"})
        with Project(command, wanted) as project:
            console = Console(project.setup_link())
            wait("on the copies", lambda: console.rungs().get("receiver-a") == "replicated", 90)
            with self.assertRaises(TooLate):
                wait("on amt", lambda: console.rungs().get("receiver-a") == "amt", 20)


if __name__ == "__main__":
    unittest.main()
