"""The chart on a real cluster: installed, tried, upgraded, rolled back and removed, while a receiver outside misses nothing.

Four installations are played: `plain` (PostgreSQL bundled), `small` (SQLite, everything in one pod), `nodes` (relays on a node) and
`standby` (two sources).

./dev test-kube --help has the options. Each claim has its own stage, and `--sabotage` breaks one after the other: the stage
that it belongs to has to fail then.
"""

import argparse
import os
import subprocess
import sys

from kube import Failed, run, say
from nodes import Nodes
from single import Single
from small import Small
from standby import Standby

# Faults: the stage that has to detect each, and the values or the trick that inject it.
SABOTAGE = {
    "unhealthy": ("installs", {"source": {"settings": {"drain_time": "nonsense"}}}, ""),
    "unrestricted": ("installs", {"source": {"hostNetwork": True}}, ""),
    "no-console": ("answers", {"console": {"enabled": False}}, ""),
    "leads-anywhere": ("keeps_console", {}, "leads-anywhere"),
    "no-relay": ("climbs", {"relay": {"enabled": False}, "source": {"service": {"relayNodePort": None}}}, ""),
    "forgets-certificate": ("survives_source", {"source": {"persistence": {"enabled": False}}}, ""),
    "forgets-database": ("survives_database", {"database": {"bundled": {"persistence": {"enabled": False}}}}, ""),
    "no-secret": ("refuses_password", {}, "no-secret"),
    "no-rollback": ("upgrades", {}, "no-rollback"),
    "wrong-link": ("receives_inside", {}, "wrong-link"),
    "loses-volumes": ("leaves", {}, "loses-volumes"),
    # Of two sources: see standby.py.
    "strange-relay": ("takes_over", {}, "strange-relay"),
    # Of relays on nodes: see nodes.py.
    "no-right": ("installs", {"relay": {"capture": False}}, ""),
    "no-relay-page": ("answers", {"relay": {"httpLocal": True}}, ""),
}
OF_TWO = ("strange-relay",)
# Installation of a stage or fault; all others are those of one source.
KINDS = {"small": Small, "nodes": Nodes, "no-right": Nodes, "no-relay-page": Nodes, "standby": Standby} | dict.fromkeys(OF_TWO, Standby)


def arguments():
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev test-kube", description=__doc__)
    parser.add_argument("--prefix", default=os.environ.get("FLEXFEED_IMAGE_PREFIX", "flexfeed"), help="of the images' names")
    parser.add_argument("--registry", default="", help="of the images")
    parser.add_argument("--tag", default="latest", help="of the images")
    parser.add_argument("--postgres", default="postgres:15", help="the database's image")
    parser.add_argument("--postgres-user", type=int, default=999, help="user id of its server")
    parser.add_argument("--pull", default="IfNotPresent", help="image.pullPolicy; Never where images are only loaded")
    parser.add_argument("--load", metavar="COMMAND", help="brings images into the cluster, such as 'kind load docker-image'")
    parser.add_argument("--receiver", help="the program flexfeed-receiver of this machine; by default that of the target folder")
    parser.add_argument("--wrapper", default="", help="what stands before it, such as 'ip netns exec outside'")
    parser.add_argument("--node-address", help="where this machine reaches the node; by default its InternalIP")
    parser.add_argument("--feed-address", help="where pods reach this machine; by default that which it reaches the node by")
    parser.add_argument("--volumes", metavar="FOLDER", help="makes volumes in this folder of the node, for clusters that make none")
    parser.add_argument("--balancers", nargs=2, metavar="ADDRESS", help="tries a standby, too, with these as addresses of load balancers (as root)")
    parser.add_argument("--sabotage", nargs="*", metavar="NAME", help=f"breaks these on purpose, or all: {', '.join(SABOTAGE)}")
    parser.add_argument("--plays", nargs="*", default=["plain", "small", "nodes", "standby"], help="which installations; by default all four")
    parser.add_argument("--only", nargs="*", metavar="STAGE", help="plays these stages alone, beside the first ones")
    parser.add_argument("--keep", action="store_true", help="leaves everything as it is in the end")
    return parser.parse_args()


def play(options, name, over=None, trick="", last=None):
    """Plays all stages, or until the stage `last`. Returns the stage that failed and why, or nothing."""
    # An injected fault is waited for a shorter time.
    kind = KINDS.get(name, Single)
    stage = kind(options, name, over, trick, "90s" if last else "4m")
    # Those that the others stand on.
    needed = {"installs", "climbs", *(options.only or ()), *([last] if last else ())}
    try:
        for one in kind.STAGES:
            if (options.only or last) and one.__name__ not in needed:
                continue
            say(f"{name}: {one.__name__}: {one.__doc__}")
            try:
                one(stage)
            except (Failed, subprocess.TimeoutExpired) as error:
                return one.__name__, str(error)
            if one.__name__ == last:
                break
        return None
    finally:
        stage.end()


def load(options):
    """Brings the images into the cluster."""
    registry = f"{options.registry}/" if options.registry else ""
    names = [f"{registry}{options.prefix}/{part}:{options.tag}" for part in ("source", "relay", "receiver", "console")]
    for image in [*names, options.postgres]:
        run(*options.load.split(), image)


def main():
    """The exit code: 0 if everything holds, or, with --sabotage, if everything that was broken was noticed."""
    options = arguments()
    if options.load:
        load(options)
    if options.sabotage is None:
        for name in options.plays:
            if name == "standby" and not options.balancers:
                say("!!! SKIPPED: standby needs --balancers")
                continue
            failed = play(options, name)
            if failed:
                say(f"{name}: FAILED: {failed[0]}: {failed[1]}")
                return 1
        say("everything holds")
        return 0
    unnoticed = 0
    for name in options.sabotage or SABOTAGE:
        stage, over, trick = SABOTAGE[name]
        if name in OF_TWO and not options.balancers:
            say(f"!!! SKIPPED: {name} needs --balancers")
            continue
        failed = play(options, name, over, trick, last=stage)
        if failed and failed[0] == stage:
            say(f"{name}: noticed by {stage}: {failed[1].splitlines()[0][:300]}")
        else:
            unnoticed += 1
            say(f"{name}: NOT noticed by {stage}: {failed}")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
