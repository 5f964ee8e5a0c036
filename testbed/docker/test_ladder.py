"""Receivers in containers find their way, and nothing is lost whatever is killed."""

import os
import subprocess
import unittest
from xml.etree import ElementTree

from engine import COMPLETE, RUN, Container, TooLate, docker, image, wait
from stage import CONTAINED, Network, Stage, free_port

# A receiver that is not on a rung by then never gets there, because of the fault. Many times the time that the rung takes.
IN_VAIN = 25


def atom_ids(document):
    """The ids of an Atom file's entries."""
    atom = "{http://www.w3.org/2005/Atom}"
    entries = ElementTree.fromstring(document).iter(f"{atom}entry")
    return {entry.findtext(f"{atom}id") for entry in entries}


def everything(stage, seconds=90):
    """All receivers have all entries that there are by now."""
    stage.feed.rate(0)
    for receiver in stage.receivers:
        receiver.wait_all(stage.feed.all(), seconds)


class Killed(unittest.TestCase):
    """Three receivers where there is no multicast, a relay beside the source, and crashes of all of them in turn."""

    def play(self, volume_kept=True):
        """`docker kill` of relay, source and one receiver while entries come."""
        with Stage(fails=not volume_kept) as stage:
            for name in ("r1", "r2", "r3"):
                # A request for everything does not replace a cursor.
                stage.receiver(name, settings=["FLEXFEED_HISTORY=100"])
            for receiver in stage.receivers:
                receiver.wait_rung("amt")
            stage.feed.rate(20)
            first = stage.receivers[0]
            wait("entries", lambda: len(first.delivered()) > 40)

            stage.relay.kill()
            for receiver in stage.receivers:
                receiver.wait_rung("replicated", "unicast")
            stage.relay.start()
            for receiver in stage.receivers:
                receiver.wait_rung("amt", seconds=120)

            stage.source.kill()
            stage.feed.add(5)
            stage.source.start()
            # Their status is stale until they have noticed.
            for receiver in stage.receivers:
                receiver.wait_all(stage.feed.all(), 120)
                receiver.wait_rung("amt", seconds=120)

            first.container.kill()
            if not volume_kept:
                first.forget()
            # More than what a receiver without a cursor is given.
            stage.feed.add(150)
            # The others do not wait for it.
            stage.receivers[1].wait_all(stage.feed.all())
            if volume_kept:
                first.container.start()
            else:
                first.run()
            first.wait_rung("amt")
            everything(stage, 90 if volume_kept else IN_VAIN)

    def test_nothing_is_lost(self):
        """As it should be."""
        self.play()

    def test_a_lost_cursor_is_noticed(self):
        """The same with the receiver's volume removed: this has to fail, or the test above says nothing."""
        with self.assertRaisesRegex(AssertionError, "are missing|lacks numbers"):
            self.play(volume_kept=False)


class Found(unittest.TestCase):
    """The way that a receiver finds follows from the network that it is given."""

    def test_without_relay_and_multicast_it_gets_copies(self):
        """Without a relay no receiver reaches the rung amt, and the receivers' network has no multicast: the tests of `amt` above depend on both."""
        with Stage(relay=False) as stage:
            one = stage.receiver("r1")
            one.wait_rung("replicated")
            with self.assertRaises(TooLate):
                one.wait_rung("amt", "multicast", seconds=IN_VAIN)
            everything(stage)

    def test_multicast_in_the_network_of_the_source_and_of_the_host(self):
        """In the source's own network, and on the host's, which is on all its bridges, the flow comes as it is. In another
        network it does not: the test above."""
        with Stage(relay=False) as stage:
            address = stage.source.address(stage.far.name)
            inside = stage.receiver("inside", network=stage.far, link=stage.link(address))
            settings = [f"FLEXFEED_INTERFACE={stage.far.gateway}", f"FLEXFEED_HTTP=127.0.0.1:{free_port()}"]
            host = stage.receiver(
                "host", network="host", link=stage.link(address), settings=settings
            )
            inside.wait_rung("multicast")
            host.wait_rung("multicast")
            stage.feed.add(50)
            everything(stage)

    @unittest.skipUnless(os.geteuid() == 0 or COMPLETE, "only root can make the interface that a macvlan network needs")
    def test_multicast_by_macvlan(self):
        """On a network of the driver macvlan, which has the machine's own segment."""
        self.assertEqual(os.geteuid(), 0, "only root can make the interface that a macvlan network needs")
        parent, other = f"{RUN}m", f"{RUN}n"
        subprocess.run(["ip", "link", "add", parent, "type", "veth", "peer", "name", other], check=True)
        try:
            for end in (parent, other):
                subprocess.run(["ip", "link", "set", end, "up"], check=True)
            segment = "10.213.91"
            options = ["-d", "macvlan", "-o", f"parent={parent}", "--subnet", f"{segment}.0/24"]
            network = Network("macvlan", *options)
            with Stage(relay=False, second=(network, f"{segment}.2")) as stage:
                # The host itself cannot reach what is on such a network: the receiver has a second one for its answers.
                link = stage.link(f"{segment}.2")
                receiver = stage.receiver(
                    "macvlan", network=stage.home, link=link, settings=[f"FLEXFEED_INTERFACE={segment}.3"]
                )
                docker("network", "connect", "--ip", f"{segment}.3", network.name, receiver.container.name)
                docker("restart", receiver.container.name)
                receiver.wait_rung("multicast")
                everything(stage)
        finally:
            docker("network", "rm", f"{RUN}-macvlan", check=False)
            subprocess.run(["ip", "link", "del", parent], check=False)


class Alone(unittest.TestCase):
    """Further promises of the receiver's image."""

    def play(self, history=()):
        """A receiver without a volume of its own name: what Docker gives it stays with the container; a new container gets all that
        the source has kept, what came while there was none included."""
        with Stage(fails=bool(history)) as stage:
            one = stage.receiver("bare", data=False, settings=history)
            one.wait_all(stage.feed.all())
            one.container.kill()
            stage.feed.add(130)
            one.container.start()
            everything(stage)
            one.container.remove()
            stage.feed.add(130)
            one.again()
            everything(stage, IN_VAIN if history else 90)
            # The file is of the same updates: it has its last 500 entries, and these are fewer.
            wait("all entries in its feed file", lambda: atom_ids(one.ask("/feeds/lore.atom")) == set(stage.feed.all()))

    def test_without_a_volume_it_catches_up_after_a_crash(self):
        """By the image's own settings."""
        self.play()

    def test_without_a_volume_the_last_hundred_are_not_enough(self):
        """The same, but for what the image asks for: this has to fail, or the test above says nothing."""
        with self.assertRaisesRegex(AssertionError, "are missing"):
            self.play(["FLEXFEED_HISTORY=100"])

    def test_a_used_up_link_is_reported_with_the_remedy(self):
        """A link for one receiver, and its container recreated without its volume. With a link without a limit it is admitted."""
        with Stage(relay=False) as stage:
            one = stage.receiver("once", data=False, link=stage.link(limit=1))
            one.wait_all(stage.feed.all())
            one.container.remove()
            one.again()
            self.assertEqual(one.container.wait_ended(), 1)
            output = one.container.logs()
            for part in ("as many receivers as it was made for", "docker run -v feeds:/data", "without --limit"):
                self.assertIn(part, output)
            one.container.remove()
            one.again(stage.link())
            everything(stage)

    def test_an_unwritable_folder_names_the_user_to_run_as(self):
        """And with that user it works; another user than the folder's fails, or the test would say nothing. The folder of root is
        what Docker makes where there is none."""
        with Stage(relay=False) as stage:
            link = stage.link()
            source = ["--multicast-ttl", "0", "--feed", "http://192.0.2.1/feed", "--allow-private-feed"]
            programs = {"receiver": ([link], "lore.atom"), "source": (source, "enrolment-link")}
            for name, (command, made) in programs.items():
                for owner in ("4321:4322", "0:0"):
                    with self.subTest(f"{name}, {owner}"):
                        self.unwritable(stage, name, command, made, owner)

    def unwritable(self, stage, name, command, made, owner):
        """One program, one owner; `made` is a file that it makes when it runs."""
        folder = f"/tmp/{RUN}-owned"
        os.makedirs(folder, mode=0o755)
        try:
            os.chown(folder, *map(int, owner.split(":")))
            options = [*CONTAINED, "--network", stage.home.name, "-v", f"{folder}:/data"]
            wrong = Container.run("wrong", image(name), *command, options=options)
            try:
                self.assertEqual(wrong.wait_ended(), 1)
                output = wrong.logs()
                self.assertIn(f"docker run --user {owner} ", output)
                self.assertIn(f"/data belongs to {owner}", output)
                self.assertIn("chown -R 65532:65532 /data", output)
            finally:
                wrong.remove()
            right = Container.run("right", image(name), *command, options=[*options, "--user", owner])
            try:
                wait(f"the file {made}", lambda: os.path.exists(f"{folder}/{made}"))
            finally:
                right.remove()
        finally:
            subprocess.run(["rm", "-rf", folder], check=False)


if __name__ == "__main__":
    unittest.main()
