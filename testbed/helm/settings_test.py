"""Tests of the chart: the programs' settings. They need no cluster."""

import base64
import json
import tomllib
import unittest

import yaml
from chart import ROOT, SCENARIOS, container, find, given, kinds, pods, refused, rendered, scenario, variables

PIN = "sha256:" + "A" * 43


def settings(objects, replica=0, name="flexfeed-source"):
    """The source's settings file of that replica."""
    files = find(objects, "Secret", f"{name}-config")["stringData"]
    return tomllib.loads(files[f"{name}-{replica}.toml"])


class Settings(unittest.TestCase):
    """Settings of the programs."""

    def test_channels_and_settings_reach_the_source(self):
        values = settings(scenario("external-database"))
        channels = values.pop("channel")
        self.assertEqual(
            values,
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
                    "fec": "off",
                    "feed": [{"url": "https://lore.kernel.org/all/new.atom", "min_interval": "20s"}],
                },
                {
                    "name": "news",
                    "rate": "5M",
                    "keep": "100000,30d",
                    "private": True,
                    "fec": "proactive:2/20",
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
                values = settings(rendered(*given(*arguments)))
                self.assertEqual((values["public_address"], values["amt_relay"]), (address, f"{relay}=127.0.0.1:2268"))
        values = settings(scenario("nodeport"))
        self.assertEqual(values["public_address"], "node.example.org:30433")
        self.assertEqual(values["amt_relay"], "node.example.org:30268=127.0.0.1:2268")
        self.assertNotIn("amt_relay", settings(rendered()), "without a public address, the relay is unreachable")

    def test_texts_cannot_break_out_of_the_settings_file(self):
        nasty = 'https://example.org/"\\\n[[channel]]\nname = "x"\t\u2028'
        channels = [{"name": "a", "keep": nasty, "feeds": [{"url": nasty}]}]
        for key in ("source.channels", "source.settings"):
            value = channels if key == "source.channels" else {"qlog": nasty, "amt_relay": [nasty, "x"]}
            values = settings(rendered("--set-json", f"{key}={json.dumps(value)}"))
            with self.subTest(key):
                if key == "source.settings":
                    self.assertEqual((values["qlog"], values["amt_relay"]), (nasty, [nasty, "x"]))
                else:
                    self.assertEqual(values["channel"], [{"name": "a", "keep": nasty, "feed": [{"url": nasty}]}])

    def test_every_standby_has_its_own_relay(self):
        objects = scenario("standby")
        self.assertEqual(settings(objects, 0)["amt_relay"], "192.0.2.1=127.0.0.1:2268")
        self.assertEqual(settings(objects, 1)["amt_relay"], "192.0.2.2:2268=127.0.0.1:2268")
        for number in (0, 1):
            values = settings(objects, number)
            self.assertEqual((values["cert"], values["key"]), ("/etc/flexfeed/tls/tls.crt", "/etc/flexfeed/tls/tls.key"))
            self.assertEqual(values["signing_key"], "/etc/flexfeed/signing/signing.key")
        workload = find(objects, "StatefulSet", "flexfeed-source")
        holder = container(workload, "source")
        mounts = {one["name"]: one["mountPath"] for one in holder["volumeMounts"]}
        self.assertEqual(mounts["signing-key"], "/etc/flexfeed/signing")
        volumes = {one["name"]: one for one in workload["spec"]["template"]["spec"]["volumes"]}
        self.assertEqual(volumes["signing-key"]["secret"]["secretName"], "signing-key")
        seen = variables(holder)
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

    def test_an_external_databases_secret_leaves_the_bundled_ones_alone(self):
        objects = rendered(*given("database.mode=external", "database.url=postgres://u:p@h/d"))
        self.assertNotIn("Secret/flexfeed-database", kinds(objects), "it has the one password that opens the bundled database's volume")
        data = find(objects, "Secret", "flexfeed-database-url")["data"]
        self.assertEqual({key: base64.b64decode(value) for key, value in data.items()}, {"DATABASE_URL": b"postgres://u:p@h/d"})
        for kind, name in (("StatefulSet", "flexfeed-source"), ("Deployment", "flexfeed-console")):
            volumes = find(objects, kind, name)["spec"]["template"]["spec"]["volumes"]
            self.assertEqual(next(one for one in volumes if one["name"] == "database")["secret"]["secretName"], "flexfeed-database-url")

    def test_the_certificate_authority_of_the_database_is_passed_on(self):
        page = (ROOT / "docs" / "kubernetes.md").read_text()
        objects = scenario("external-database")
        for kind, name in (("StatefulSet", "flexfeed-source"), ("Deployment", "flexfeed-console")):
            spec = find(objects, kind, name)["spec"]["template"]["spec"]
            volume = next(one for one in spec["volumes"] if one["name"] == "database")["secret"]
            self.assertEqual(volume["items"], [{"key": "url", "path": "url"}, {"key": "root.pem", "path": "ca.crt"}])
            mount = next(one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "database")
            self.assertTrue(f"sslrootcert={mount['mountPath']}/ca.crt" in page, "the page says another place")
        plain = find(scenario("default"), "StatefulSet", "flexfeed-source")["spec"]["template"]["spec"]["volumes"]
        self.assertEqual(len(next(one for one in plain if one["name"] == "database")["secret"]["items"]), 1)

    def test_multicast_leaves_where_it_is_to_leave(self):
        for pairs, ttl in [
            ([], "0"), (["source.hostNetwork=true"], "64"), (["relay.mode=daemonset"], "64"),
            (["source.hostNetwork=true", "source.multicastTtl=0"], "0"), (["relay.mode=daemonset", "relay.enabled=false"], "0"),
        ]:  # fmt: skip
            with self.subTest(pairs):
                self.assertEqual(settings(rendered(*given(*pairs)))["multicast_ttl"], ttl)

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

    def test_what_the_chart_knows_is_said_beside_a_file_of_others(self):
        objects = scenario("existing-config")
        self.assertNotIn("Secret/flexfeed-source-config", kinds(objects))
        workload = find(objects, "StatefulSet", "flexfeed-source")
        source = container(workload, "source")
        seen = variables(source)
        self.assertLessEqual(
            {
                "FLEXFEED_CONFIG": "/etc/flexfeed/config/source.toml",
                "FLEXFEED_PUBLIC_ADDRESS": "feeds.example.org:4433",
                "FLEXFEED_AMT_RELAY": "relay.example.org=127.0.0.1:2268",
                "FLEXFEED_MULTICAST_TTL": "0",
                "FLEXFEED_CERT": "/etc/flexfeed/tls/tls.crt",
                "FLEXFEED_KEY": "/etc/flexfeed/tls/tls.key",
                "FLEXFEED_SIGNING_KEY": "/etc/flexfeed/signing/signing.key",
                "FLEXFEED_NEXT_PIN": PIN,
            }.items(),
            seen.items(),
        )
        mounts = {one["name"]: one["mountPath"] for one in source["volumeMounts"]}
        self.assertEqual(mounts["tls"], "/etc/flexfeed/tls")
        volumes = {one["name"]: one for one in workload["spec"]["template"]["spec"]["volumes"]}
        self.assertEqual(volumes["config"]["secret"]["secretName"], "own-settings")
        bare = rendered("--set", "source.existingConfigSecret=own")
        seen = variables(container(find(bare, "StatefulSet", "flexfeed-source"), "source"))
        for name in ("PUBLIC_ADDRESS", "AMT_RELAY", "CERT", "KEY", "SIGNING_KEY", "NEXT_PIN"):
            self.assertNotIn(f"FLEXFEED_{name}", seen, "an unset variable must not hide the file's value")
        ours = variables(container(find(scenario("standby"), "StatefulSet", "flexfeed-source"), "source"))
        self.assertNotIn("FLEXFEED_CERT", ours, "the chart's own file has it")

    def test_a_variable_is_there_once(self):
        for path in SCENARIOS:
            for name, _, spec in pods(rendered("-f", path)):
                for one in spec["containers"]:
                    names = [entry["name"] for entry in one.get("env", [])]
                    self.assertEqual(len(names), len(set(names)), f"{path.name}: {name}")
        for part, name in (
            ("source", "FLEXFEED_HTTP"), ("source", "DATABASE_URL_FILE"), ("relay", "FLEXFEED_RELAY_LISTEN"),
            ("relay", "FLEXFEED_RELAY_MTU"), ("console", "FLEXFEED_CONSOLE_LOG_LEVEL"), ("receiver", "FLEXFEED_NAME"),
            ("database.bundled", "PGDATA"),
        ):  # fmt: skip
            with self.subTest(name):
                values = [f"{part}.extraEnv[0].name={name}", "relay.settings.mtu=1400"]
                values += ["receiver.enabled=true", "receiver.existingSecret=l"]
                self.assertIn(f"{part}.extraEnv: {name} exists already", refused(*given(*values)))
        twice = ["source.extraEnv[0].name=TZ", "source.extraEnv[1].name=TZ"]
        self.assertIn("source.extraEnv: TZ", refused(*given(*twice)))

    def test_relays_of_others_are_named_in_the_settings(self):
        values = settings(rendered(*given("relay.enabled=false", "source.settings.amt_relay=r.example")))
        self.assertEqual(values["amt_relay"], "r.example")
        # They follow those of the release, which are announced all the same.
        further = ["publicAddress=a.example", "source.settings.amt_relay=r.example"]
        self.assertEqual(settings(rendered(*given(*further)))["amt_relay"], "a.example:2268=127.0.0.1:2268,r.example")
        values = settings(rendered(*given("relay.addresses={b.example}", "source.settings.amt_relay={r.example,s.example}")))
        self.assertEqual(values["amt_relay"], "b.example=127.0.0.1:2268,r.example,s.example")
        values = settings(rendered(*given("relay.mode=daemonset", "relay.addresses={a,b}", "source.settings.amt_relay=r")))
        self.assertEqual(values["amt_relay"], "a|b,r")
        objects = scenario("standby", "--set", "source.settings.amt_relay=r.example")
        self.assertEqual(settings(objects, 1)["amt_relay"], "192.0.2.2:2268=127.0.0.1:2268,r.example")

        def by_node(*pairs):
            objects = scenario("standby-nodeport", *given(*pairs))
            return variables(container(find(objects, "StatefulSet", "flexfeed-source"), "source")).get("FLEXFEED_AMT_RELAY")

        self.assertEqual(by_node("source.settings.amt_relay=r.example"), "$(HOST_IP):30268=127.0.0.1:2268,r.example")
        # Naming the relay beside the source, or none at all, replaces the whole list.
        for said in ("r.example|a.example:2268=127.0.0.1:2268", "a.example=localhost", "a.example=[::1]:2268", ""):
            values = settings(rendered(*given("publicAddress=a.example"), "--set-string", f"source.settings.amt_relay={said}"))
            self.assertEqual(values["amt_relay"], said)
        self.assertIsNone(by_node("source.settings.amt_relay=n.example=127.0.0.1:2268"))

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
            for one in rendered(*given(*pairs), fresh=True):
                if one["kind"] in ("StatefulSet", "Deployment"):
                    found[one["metadata"]["name"]] = yaml.safe_dump(one["spec"]["template"])
            return found

        before, same = sums("publicAddress=a.example"), sums("publicAddress=a.example")
        self.assertEqual(before, same)
        after = sums("publicAddress=b.example")
        self.assertNotEqual(before["flexfeed-source"], after["flexfeed-source"])
        self.assertEqual(before["flexfeed-console"], after["flexfeed-console"])
        self.assertEqual(before["flexfeed-postgres"], after["flexfeed-postgres"])
        # Pods that open the database are replaced with its URL or password; a generated password is never shown.
        one = sums("database.mode=external", "database.url=postgres://u:p@a/d")
        other = sums("database.mode=external", "database.url=postgres://u:p@b/d")
        given_one, given_other = sums("database.bundled.password=a"), sums("database.bundled.password=b")
        for name in ("flexfeed-source", "flexfeed-console"):
            self.assertNotEqual(one[name], other[name])
            self.assertNotEqual(given_one[name], given_other[name])
            self.assertNotIn("checksum/database", before[name])
        self.assertEqual(given_one["flexfeed-postgres"], given_other["flexfeed-postgres"])


if __name__ == "__main__":
    unittest.main()
