"""Tests of the chart: what it makes of values, and what it refuses. They need no cluster."""

import base64
import json
import re
import tomllib
import unittest

import yaml
from chart import (
    CHART,
    ROOT,
    SCENARIOS,
    container,
    find,
    given,
    kinds,
    pods,
    rendered,
    scenario,
    variables,
)

PIN = "sha256:" + "A" * 43


def settings(objects, replica=0, name="flexfeed-source"):
    """The source's settings file of that replica."""
    files = find(objects, "Secret", f"{name}-config")["stringData"]
    return tomllib.loads(files[f"{name}-{replica}.toml"])


class Parts(unittest.TestCase):
    """Which objects there are."""

    def test_by_default_there_is_all_of_an_installation(self):
        self.assertEqual(
            kinds(scenario("default")),
            [
                "Deployment/flexfeed-console",
                "Pod/flexfeed-test",
                "PodDisruptionBudget/flexfeed-console",
                "PodDisruptionBudget/flexfeed-source",
                "Secret/flexfeed-database",
                "Secret/flexfeed-source-config",
                "Service/flexfeed-console",
                "Service/flexfeed-postgres",
                "Service/flexfeed-source",
                "Service/flexfeed-source-pods",
                "ServiceAccount/flexfeed",
                "StatefulSet/flexfeed-postgres",
                "StatefulSet/flexfeed-source",
            ],
        )

    def test_with_sqlite_one_pod_is_everything(self):
        objects = scenario("sqlite")
        workloads = [one for one in kinds(objects) if one.split("/")[0] in ("StatefulSet", "Deployment", "DaemonSet")]
        self.assertEqual(workloads, ["StatefulSet/flexfeed-source"])
        source = container(find(objects, "StatefulSet", "flexfeed-source"), "source")
        seen = variables(source)
        self.assertEqual(seen["DATABASE_URL"], "sqlite:///data/flexfeed.db")
        self.assertEqual(seen["FLEXFEED_CONSOLE"], "0.0.0.0:9470")
        self.assertEqual(seen["FLEXFEED_CONSOLE_PUBLIC_URL"], "https://console.example.org")
        self.assertEqual(seen["FLEXFEED_CONSOLE_TRUSTED_PROXY"], "10.0.0.0/8")
        self.assertNotIn("DATABASE_URL_FILE", seen)
        service = find(objects, "Service", "flexfeed-console")["spec"]
        self.assertEqual(service["selector"]["app.kubernetes.io/component"], "source")
        self.assertIn(service["ports"][0]["targetPort"], [port["name"] for port in source["ports"]])

    def test_the_line_of_the_console_installs_a_receiver_and_nothing_else(self):
        link = f"flexfeed://TOKEN@feeds.example.org:4433?pin={PIN}&pin={PIN}&ch=lore&ch=news"
        line = (ROOT / "services/console/src/api/enrolments.rs").read_text()
        for part in ("helm install flexfeed-receiver ./helm/flexfeed --set source.enabled=false",
                     "--set relay.enabled=false --set console.enabled=false --set receiver.enabled=true",
                     "--set-string receiver.link='{link}'"):
            self.assertIn(part, line, "the console prints another line than this test tries")
        objects = rendered(
            *given("source.enabled=false", "relay.enabled=false", "console.enabled=false", "receiver.enabled=true"),
            "--set-string",
            f"receiver.link={link}",
            release="flexfeed-receiver",
        )
        self.assertEqual(
            kinds(objects),
            [
                "Pod/flexfeed-receiver-test",
                "Secret/flexfeed-receiver-receiver",
                "Service/flexfeed-receiver-receiver",
                "ServiceAccount/flexfeed-receiver",
                "StatefulSet/flexfeed-receiver-receiver",
            ],
        )
        self.assertEqual(find(objects, "Secret", "flexfeed-receiver-receiver")["stringData"], {"link": link})

    def test_a_receiver_keeps_what_it_is(self):
        one = find(scenario("receiver"), "StatefulSet", "flexfeed-receiver")["spec"]
        self.assertEqual(one["replicas"], 1)
        self.assertEqual([claim["metadata"]["name"] for claim in one["volumeClaimTemplates"]], ["data"])
        each = find(scenario("receiver-daemonset"), "DaemonSet", "flexfeed-receiver")
        spec = each["spec"]["template"]["spec"]
        self.assertEqual(
            next(volume for volume in spec["volumes"] if volume["name"] == "data")["hostPath"]["path"],
            "/var/lib/flexfeed-receiver",
        )
        self.assertTrue(spec["hostNetwork"])
        seen = variables(container(each, "receiver"))
        self.assertEqual(seen["FLEXFEED_NAME"], "edge-$(WHERE)")
        self.assertEqual(seen["FLEXFEED_WEBHOOK"], "https://example.org/hook")
        self.assertEqual(seen["FLEXFEED_WEBHOOK_SECRET_FILE"], "/etc/flexfeed/files/webhook-secret")

    def test_relays_are_possible_without_a_source(self):
        self.assertEqual(
            kinds(scenario("relay-only")),
            ["DaemonSet/flexfeed-relay", "Pod/flexfeed-test", "Service/flexfeed-relay", "ServiceAccount/flexfeed"],
        )

    def test_names_follow_the_release(self):
        names = {one["metadata"]["name"] for one in rendered(release="prod")}
        self.assertTrue(all(name.startswith("prod-flexfeed") for name in names), names)
        for one in rendered("-f", CHART / "ci" / "everything.yaml", release="a" * 53):
            limit = 52 if one["kind"] in ("StatefulSet", "DaemonSet", "Deployment") else 63
            self.assertLessEqual(len(one["metadata"]["name"]), limit, "labels with a pod's hash have at most 63")

    def test_images_follow_registry_prefix_and_tag(self):
        def images(objects):
            return {one["image"] for _, _, spec in pods(objects) for one in spec["containers"]}

        version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
        self.assertEqual(
            images(scenario("default")),
            {f"flexfeed/source:{version}", f"flexfeed/relay:{version}", f"flexfeed/console:{version}", "postgres:15"},
        )
        self.assertIn("registry.example.org/team/flexfeed/receiver:1.2.3", images(scenario("everything")))


class Settings(unittest.TestCase):
    """What the programs are told."""

    def test_channels_and_settings_reach_the_source(self):
        told = settings(scenario("external-database"))
        channels = told.pop("channel")
        self.assertEqual(
            told,
            {
                "amt_relay": "feeds.example.org:2268=127.0.0.1:2268",
                "contact": "mailto:feeds@example.org",
                "heartbeat_ms": "2000",
                "min_poll_interval": "30s",
                "multicast_ttl": "0",
                "no_replicate": False,
                "public_address": "feeds.example.org:443",
                "rate": "20M",
                "retention": "1000000",
                "retention_age": "90d",
            },
        )
        self.assertEqual(
            channels,
            [
                {
                    "name": "lore",
                    "groups": ["232.70.70.1:4434"],
                    "feed": [{"url": "https://lore.kernel.org/all/new.atom", "min_interval": "20s"}],
                },
                {
                    "name": "news",
                    "rate": "5M",
                    "keep": "100000,30d",
                    "private": True,
                    "feed": [
                        {"url": "https://someone:secret@example.org/news.atom", "interval": "2m"},
                        {"url": "http://10.0.0.7/inside.atom", "local": True},
                    ],
                },
            ],
        )

    def test_public_address_gets_the_port_that_receivers_need(self):
        for arguments, address, relay in [
            (["publicAddress=a.example"], "a.example:4433", "a.example:2268"),
            (["publicAddress=a.example:443"], "a.example:443", "a.example:2268"),
            (["publicAddress=192.0.2.7", "source.service.port=443"], "192.0.2.7:443", "192.0.2.7:2268"),
            (["publicAddress=2001:db8::7"], "[2001:db8::7]:4433", "[2001:db8::7]:2268"),
            (["publicAddress=[2001:db8::7]:443"], "[2001:db8::7]:443", "[2001:db8::7]:2268"),
            (["publicAddress=a.example", "relay.addresses={b.example:9}"], "a.example:4433", "b.example:9"),
        ]:
            with self.subTest(arguments):
                told = settings(rendered(*given(*arguments)))
                self.assertEqual((told["public_address"], told["amt_relay"]), (address, f"{relay}=127.0.0.1:2268"))
        told = settings(scenario("nodeport"))
        self.assertEqual(told["public_address"], "node.example.org:30433")
        self.assertEqual(told["amt_relay"], "node.example.org:30268=127.0.0.1:2268")
        self.assertNotIn("amt_relay", settings(rendered()), "without a public address, nobody can reach the relay")

    def test_texts_cannot_break_out_of_the_settings_file(self):
        nasty = 'https://example.org/"\\\n[[channel]]\nname = "x"\t\u2028'
        channels = [{"name": "a", "keep": nasty, "feeds": [{"url": nasty}]}]
        for key in ("source.channels", "source.settings"):
            value = channels if key == "source.channels" else {"contact": nasty, "list": [nasty, "x"]}
            told = settings(rendered("--set-json", f"{key}={json.dumps(value)}"))
            with self.subTest(key):
                if key == "source.settings":
                    self.assertEqual((told["contact"], told["list"]), (nasty, [nasty, "x"]))
                else:
                    self.assertEqual(told["channel"], [{"name": "a", "keep": nasty, "feed": [{"url": nasty}]}])

    def test_every_standby_is_told_of_its_own_relay(self):
        objects = scenario("standby")
        self.assertEqual(settings(objects, 0)["amt_relay"], "192.0.2.1=127.0.0.1:2268")
        self.assertEqual(settings(objects, 1)["amt_relay"], "192.0.2.2:2268=127.0.0.1:2268")
        for number in (0, 1):
            told = settings(objects, number)
            self.assertEqual((told["cert"], told["key"]), ("/etc/flexfeed/tls/tls.crt", "/etc/flexfeed/tls/tls.key"))
        seen = variables(container(find(objects, "StatefulSet", "flexfeed-source"), "source"))
        self.assertEqual(seen["FLEXFEED_CONFIG"], "/etc/flexfeed/config/$(POD_NAME).toml")
        by_node = variables(container(find(scenario("standby-nodeport"), "StatefulSet", "flexfeed-source"), "source"))
        self.assertEqual(by_node["FLEXFEED_AMT_RELAY"], "$(HOST_IP):30268=127.0.0.1:2268")

    def test_passwords_are_read_from_files(self):
        for name in ("default", "external-database"):
            objects = scenario(name)
            for kind, part in (("StatefulSet", "source"), ("Deployment", "console")):
                workload = find(objects, kind, f"flexfeed-{part}")
                holder = container(workload, part)
                seen = variables(holder)
                self.assertEqual(seen["DATABASE_URL"], "", "the image may have a default, which must not win")
                path = seen["DATABASE_URL_FILE"]
                mount = next(one for one in holder["volumeMounts"] if path.startswith(one["mountPath"] + "/"))
                volumes = workload["spec"]["template"]["spec"]["volumes"]
                volume = next(one for one in volumes if one["name"] == mount["name"])["secret"]
                self.assertEqual(path, f"{mount['mountPath']}/{volume['items'][0]['path']}")
                wanted = ("flexfeed-database", "DATABASE_URL") if name == "default" else ("flexfeed-db", "url")
                self.assertEqual((volume["secretName"], volume["items"][0]["key"]), wanted)

    def test_the_bundled_database_and_its_url_have_one_password(self):
        data = find(scenario("default"), "Secret", "flexfeed-database")["data"]
        text = {key: base64.b64decode(value).decode() for key, value in data.items()}
        self.assertRegex(text["password"], "^[A-Za-z0-9]{40}$")
        self.assertEqual(
            text["DATABASE_URL"], f"postgresql://flexfeed:{text['password']}@flexfeed-postgres:5432/flexfeed"
        )
        fixed = find(rendered("--set", "database.bundled.password=abc"), "Secret", "flexfeed-database")["data"]
        self.assertEqual(base64.b64decode(fixed["password"]), b"abc")
        own = rendered("--set", "database.existingSecret=mine")
        self.assertNotIn("Secret/flexfeed-database", kinds(own))

    def test_settings_of_relay_console_and_database(self):
        relay = find(scenario("relay-daemonset"), "DaemonSet", "flexfeed-relay")
        seen = variables(container(relay, "relay"))
        self.assertEqual(seen["FLEXFEED_RELAY_MAX_GATEWAYS"], "20000")
        self.assertEqual(seen["FLEXFEED_RELAY_DENY"], "10.0.0.0/8,192.168.0.0/16")
        self.assertEqual((seen["FLEXFEED_RELAY_CAPTURE"], seen["FLEXFEED_RELAY_NATIVE_INTERFACE"]), ("true", "eth1"))
        console = variables(container(find(scenario("external-database"), "Deployment", "flexfeed-console"), "console"))
        self.assertEqual(console["FLEXFEED_CONSOLE_SESSION_TIME"], "8h")
        self.assertEqual(console["FLEXFEED_CONSOLE_TRUSTED_PROXY"], "10.0.0.0/8,fd00::/8")
        self.assertEqual(console["FLEXFEED_CONSOLE_PUBLIC_URL"], "https://console.example.org")
        postgres = container(find(scenario("everything"), "StatefulSet", "flexfeed-feeds-postgres"), "postgres")
        self.assertEqual(postgres["args"], ["-c", "max_connections=50", "-c", "shared_buffers=256MB"])

    def test_pods_are_replaced_when_their_settings_change_and_only_then(self):
        def sums(*pairs):
            found = {}
            for one in rendered(*given(*pairs)):
                if one["kind"] in ("StatefulSet", "Deployment"):
                    found[one["metadata"]["name"]] = yaml.safe_dump(one["spec"]["template"])
            return found

        before, same = sums("publicAddress=a.example"), sums("publicAddress=a.example")
        self.assertEqual(before, same)
        after = sums("publicAddress=b.example")
        self.assertNotEqual(before["flexfeed-source"], after["flexfeed-source"])
        self.assertEqual(before["flexfeed-console"], after["flexfeed-console"])
        self.assertEqual(before["flexfeed-postgres"], after["flexfeed-postgres"])


class Reach(unittest.TestCase):
    """Who is reached how."""

    def test_all_services_lead_to_ports_that_are_there(self):
        for path in SCENARIOS:
            with self.subTest(path.name):
                objects = rendered("-f", path)
                for service in (one for one in objects if one["kind"] == "Service"):
                    name = service["metadata"]["name"]
                    selector = dict(service["spec"]["selector"])
                    selector.pop("statefulset.kubernetes.io/pod-name", None)
                    found = [spec for _, labels, spec in pods(objects) if selector.items() <= labels.items()]
                    self.assertEqual(len(found), 1, f"Service {name} selects {len(found)} kinds of pods")
                    ports = {
                        (port["name"], port["protocol"]) for one in found[0]["containers"] for port in one.get("ports", [])
                    }
                    for port in service["spec"]["ports"]:
                        self.assertIn((port["targetPort"], port["protocol"]), ports, name)

    def test_receivers_keep_their_addresses_and_a_source_without_database(self):
        service = find(scenario("default"), "Service", "flexfeed-source")["spec"]
        self.assertEqual(service["type"], "LoadBalancer")
        self.assertEqual(service["externalTrafficPolicy"], "Local")
        self.assertTrue(service["publishNotReadyAddresses"])
        self.assertEqual({(port["port"], port["protocol"]) for port in service["ports"]}, {(4433, "UDP"), (2268, "UDP")})
        ports = find(scenario("nodeport"), "Service", "flexfeed-source")["spec"]["ports"]
        self.assertEqual([port["nodePort"] for port in ports], [30433, 30268])
        inside = find(rendered("--set", "source.service.type=ClusterIP"), "Service", "flexfeed-source")["spec"]
        self.assertNotIn("externalTrafficPolicy", inside)

    def test_each_standby_has_a_service_of_its_own(self):
        objects = scenario("standby")
        for number, name, address in ((0, "flexfeed-source", "192.0.2.1"), (1, "flexfeed-source-1", "192.0.2.2")):
            spec = find(objects, "Service", name)["spec"]
            self.assertEqual(spec["selector"]["statefulset.kubernetes.io/pod-name"], f"flexfeed-source-{number}")
            self.assertEqual(spec["loadBalancerIP"], address)
        by_node = [one for one in kinds(scenario("standby-nodeport")) if one.startswith("Service/flexfeed-source")]
        self.assertEqual(by_node, ["Service/flexfeed-source", "Service/flexfeed-source-pods"])
        spread = find(scenario("standby-nodeport"), "StatefulSet", "flexfeed-source")["spec"]["template"]["spec"]
        self.assertIn("requiredDuringSchedulingIgnoredDuringExecution", spread["affinity"]["podAntiAffinity"])

    def test_a_standby_counts_as_ready(self):
        def probed(name):
            return container(find(scenario(name), "StatefulSet", "flexfeed-source"), "source")["readinessProbe"]["httpGet"]

        self.assertEqual(probed("default")["path"], "/readyz")
        self.assertEqual(probed("standby")["path"], "/readyz?standby=ok")

    def test_every_program_is_probed(self):
        for path in SCENARIOS:
            for name, _, spec in pods(rendered("-f", path)):
                if name.endswith("-test"):
                    continue
                for one in spec["containers"]:
                    for probe in ("livenessProbe", "readinessProbe"):
                        self.assertIn(probe, one, f"{path.name}: {name}/{one['name']}")
                        asked = one[probe].get("httpGet")
                        if asked:
                            self.assertIn(asked["port"], [port["name"] for port in one["ports"]])

    def test_helm_test_asks_every_part(self):
        for path in SCENARIOS:
            objects = rendered("-f", path)
            asked = [one for one in objects if one["kind"] == "Pod"]
            services = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "Service"}
            programs = {one["name"] for name, _, spec in pods(objects) if not name.endswith("-test") for one in spec["containers"]}
            self.assertEqual({one["name"] for pod in asked for one in pod["spec"]["containers"]}, programs - {"postgres"}, path.name)
            for one in (one for pod in asked for one in pod["spec"]["containers"]):
                variable, port = re.fullmatch(r"\[?\$\((\w+)_SERVICE_HOST\)\]?:(\d+)", one["command"][-1]).groups()
                service = next(spec for name, spec in services.items() if name.upper().replace("-", "_") == variable)
                self.assertNotIn("clusterIP", service, "a headless Service has no such variable")
                self.assertIn(int(port), [entry["port"] for entry in service["ports"]])

    def test_the_console_is_found_by_ingress_and_route(self):
        ingress = find(scenario("sqlite"), "Ingress", "flexfeed-console")["spec"]
        self.assertEqual(ingress["tls"], [{"hosts": ["console.example.org"], "secretName": "console-tls"}])
        backend = ingress["rules"][0]["http"]["paths"][0]["backend"]["service"]
        self.assertEqual(backend, {"name": "flexfeed-console", "port": {"name": "console"}})
        route = find(scenario("external-database"), "HTTPRoute", "flexfeed-console")["spec"]
        self.assertEqual(route["parentRefs"], [{"name": "public", "namespace": "gateways"}])
        self.assertEqual(route["rules"][0]["backendRefs"], [{"name": "flexfeed-console", "port": 80}])

    def test_policies_let_in_what_is_there_to_be_reached(self):
        objects = scenario("everything")
        policies = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "NetworkPolicy"}
        prefix = "flexfeed-feeds-"
        self.assertEqual(set(policies), {prefix + part for part in ("source", "console", "postgres", "receiver")})
        ports = [port["port"] for rule in policies[prefix + "source"]["ingress"] for port in rule["ports"]]
        self.assertEqual(ports, ["quic", "amt", "http", "relay-http"])
        clients = policies[prefix + "postgres"]["ingress"][0]["from"]
        self.assertEqual(
            [one["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for one in clients], ["source", "console"]
        )
        self.assertEqual(policies[prefix + "postgres"]["egress"], [])
        named = '[{"podSelector":{"matchLabels":{"app":"%s"}}}]'
        only = rendered(
            "--set", "networkPolicy.enabled=true",
            "--set-json", "networkPolicy.consoleFrom=" + named % "proxy",
            "--set-json", "networkPolicy.monitoringFrom=" + named % "prometheus",
        )  # fmt: skip
        console = find(only, "NetworkPolicy", "flexfeed-console")["spec"]["ingress"][0]["from"]
        self.assertEqual([one["podSelector"]["matchLabels"]["app"] for one in console], ["proxy", "prometheus"])
        for name, spec in policies.items():
            chosen = spec["podSelector"]["matchLabels"]
            self.assertEqual(len([1 for _, labels, _ in pods(objects) if chosen.items() <= labels.items()]), 1, name)


if __name__ == "__main__":
    unittest.main()
