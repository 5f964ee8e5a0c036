"""A feed that grows, served to containers by this process, and what is checked against it."""

import http.server
import threading
import time

# So many of the newest entries are in the document, which is as many as a source takes of one. What leaves it between two
# polls is lost by the feed and not by the source: 20 entries a second leave 50 s for a source that is killed to come back.
WINDOW = 1000

CHALLENGE = b"""<!doctype html><html><head><title>Checking that you are not a bot</title>
<script id="anubis_challenge" type="application/json">{}</script></head>
<body><h1>One moment, please</h1><noscript>Enable JavaScript and cookies to pass this challenge.</noscript></body></html>"""


class Feed:
    """Listens on all addresses of this machine: containers reach it by the gateway of their network.

    /feed.atom is the feed, /challenge a page that wants to know whether a person asks.
    """

    def __init__(self):
        self.ids = []
        self._lock = threading.Lock()
        self._rate = 0.0
        self._end = threading.Event()
        feed = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """Answers GET."""

            def do_GET(self):  # noqa: N802 the library's name
                """The two documents."""
                challenged = self.path.startswith("/challenge")
                body = CHALLENGE if challenged else feed.document()
                self.send_response(200)
                kind = "text/html; charset=utf-8" if challenged else "application/atom+xml"
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                """Not read."""

        self._server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        threading.Thread(target=self._grow, daemon=True).start()

    def close(self):
        """Ends it."""
        self._end.set()
        self._server.shutdown()
        self._server.server_close()

    def rate(self, per_second):
        """From now on, so many entries are added in a second."""
        self._rate = per_second

    def add(self, count):
        """Adds entries at once."""
        with self._lock:
            first = len(self.ids) + 1
            self.ids.extend(f"urn:flexfeed:test:{number}" for number in range(first, first + count))

    def all(self):
        """The ids of all entries until now, the oldest first."""
        with self._lock:
            return list(self.ids)

    def _grow(self):
        while not self._end.wait(1 / self._rate if self._rate else 0.1):
            if self._rate:
                self.add(1)

    def document(self):
        """The feed as Atom, the newest entry first."""
        ids = self.all()[-WINDOW:]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entries = "".join(
            f"<entry><id>{one}</id><title>Entry {one.rsplit(':', 1)[1]}</title>"
            f"<updated>2026-01-01T00:00:00Z</updated><content>text of {one}</content></entry>"
            for one in reversed(ids)
        )
        return (
            '<?xml version="1.0" encoding="utf-8"?><feed xmlns="http://www.w3.org/2005/Atom">'
            f"<id>urn:flexfeed:test</id><title>A growing feed</title><updated>{now}</updated>"
            f"{entries}</feed>"
        ).encode()
