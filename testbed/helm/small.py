"""The smallest installation on a cluster: one pod, with SQLite and the console inside the source."""

from kube import Cluster, Failed, wait
from single import Single, merged


class Small(Single):
    """One installation with everything in one pod."""

    def values(self):
        """Values for the chart."""
        return merged(super().values(), merged({"database": {"mode": "sqlite"}}, self.over))

    def installs(self):
        """One pod is everything, and it is ready."""
        self.cluster = Cluster(self.namespace)
        self._volumes("data-flexfeed-source-0")
        self.feed.add(20)
        self._install(self.values())
        found = [one["metadata"]["name"] for one in self.cluster.get("pods")]
        if found != ["flexfeed-source-0"]:
            raise Failed(f"the pods are {found}")

    def answers(self):
        """The console inside the source answers by its Service, and its log has the link for the first operator."""
        wait("the console", lambda: self.cluster.page("flexfeed-console", 80, "/healthz"), 60)
        if "/setup#" not in self.cluster.kubectl("logs", "flexfeed-source-0", "-c", "source"):
            raise Failed("the log has no link for the first operator")
        self.cluster.helm("test", "flexfeed", "--timeout", "2m")

    STAGES = (installs, answers, Single.climbs, Single.survives_source, Single.survives_crash)
