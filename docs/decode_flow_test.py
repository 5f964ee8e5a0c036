#!/usr/bin/env python3
"""decode_flow.py must notice every vector that says something else than its bytes: one bit is changed at a time, in every
value of every vector that it reads, at the value's beginning, middle and end.

Two things are left alone: the hexadecimal text of packets that are dropped anyway, which may hold anything, and vectors of
docs/protocol.md that are neither packets nor about signatures, which the crate's own tests check.
"""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
import decode_flow  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
PROTOCOL = (HERE / "protocol.md").read_text(encoding="utf-8")
RECORDING = (HERE / "vectors" / "recorded-flow.md").read_text(encoding="utf-8")

# Fields of the vectors about signatures that decode_flow.py reads.
SIGNATURE_FIELDS = {"name", "channel", "seed", "public-key", "key-id", "salt", "hash", "message", "signature", "hex"}
SIGNATURE_FIELDS |= {"old-key", "key"}
# The first 16 bytes of keyed hashes, by the length of what is hashed.
KEYED_HASHES = {
    0: "92b2b75604ed3c761f9d6f62392c8a92",
    1: "6d7878dfff2f485635d39013278ae14f",
    1024: "75c46f6f3d9eb4f55ecaaee480db732e",
    1025: "357dc55de0c7e382c900fd6e320acc04",
    2049: "9f29700902f7c86e514ddc4df1e3049f",
    7169: "ed9b1a922c046fdb3d423ae34e143b05",
}


def write(vectors):
    """A document of nothing but these vectors."""
    blocks = ("\n".join(f"{name}: {value}" for name, value in vector.items()) for vector in vectors)
    return "".join(f"```vector\n{block}\n```\n" for block in blocks)


def flipped(value, at):
    """The text with the lowest bit of the character at `at` changed: a digit becomes another digit of the same base."""
    return value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :] if value[at] != " " else None


def changes(vectors, free):
    """Each list of vectors that differs in one bit, with what was changed; fields named in `free` are left alone."""
    for vector in vectors:
        for name, value in list(vector.items()):
            if name in free or name == "hex" and vector.get("outcome") == "dropped":
                continue
            for at in {0, len(value) // 2, len(value) - 1} if value else ():
                changed = flipped(value, at)
                if changed is None:
                    continue
                vector[name] = changed
                yield f"{vector['name']}, {name}, character {at}", vectors
                vector[name] = value


def packet_vectors():
    """The vectors of packets, that of a signature in one, and the bytes that it is of."""
    vectors = decode_flow.read_vectors(PROTOCOL)
    packets = [v for v in vectors if v["name"].startswith(("packet-", "frame-stream-signature"))]
    update = next(v for v in vectors if v["name"] == "encoded-update")
    return [*packets, {name: update[name] for name in ("name", "hex")}]


class Changed(unittest.TestCase):
    def test_as_written(self):
        decode_flow.check(PROTOCOL, RECORDING)

    def test_rewritten_without_a_change(self):
        packets = packet_vectors()
        decode_flow.check(write(packets), write(decode_flow.read_vectors(RECORDING)))

    def test_one_bit_of_a_packet_vector(self):
        packets = packet_vectors()
        # By the names, vectors refer to each other.
        self.all_are_noticed(packets, lambda changed: decode_flow.check(write(changed), RECORDING), {"name"})

    def test_one_bit_of_the_recording(self):
        vectors = decode_flow.read_vectors(RECORDING)
        self.all_are_noticed(vectors, lambda changed: decode_flow.check(PROTOCOL, write(changed)))

    def test_one_bit_of_a_signature_vector(self):
        names = ("signed-update", "lineage", "need-forged", "encoded-update")
        vectors = [v for v in decode_flow.read_vectors(PROTOCOL) if v["name"] in names]
        decode_flow.check_signatures(write(vectors))
        vectors = [{name: v[name] for name in v if name in SIGNATURE_FIELDS} for v in vectors]
        self.all_are_noticed(vectors, lambda changed: decode_flow.check_signatures(write(changed)))

    def test_one_bit_of_a_signed_update(self):
        vectors = {v["name"]: v for v in decode_flow.read_vectors(PROTOCOL)}
        eras = decode_flow.control(bytes.fromhex(vectors["lineage"]["hex"]))["eras"]
        signed = bytes.fromhex(vectors["signed-update"]["hex"])
        decode_flow.SignedUpdate(signed).verify("lore", 301, eras)
        for at in range(8 * len(signed)):
            forged = bytearray(signed)
            forged[at // 8] ^= 1 << at % 8
            with self.assertRaises(decode_flow.Wrong, msg=f"bit {at}"):
                decode_flow.SignedUpdate(bytes(forged)).verify("lore", 301, eras)
        for length in range(len(signed)):
            with self.assertRaises(decode_flow.Wrong, msg=f"{length} bytes"):
                decode_flow.SignedUpdate(signed[:length]).verify("lore", 301, eras)
        for channel, seq, known in (("news", 301, eras), ("lore", 302, eras), ("lore", 300, eras), ("lore", 301, [])):
            with self.assertRaises(decode_flow.Wrong, msg=f"{channel} {seq}"):
                decode_flow.SignedUpdate(signed).verify(channel, seq, known)

    def test_eras_ascend(self):
        def frame(*eras):
            body = bytes([1, len(eras)]) + b"".join(bytes([first, last]) + bytes(48) for first, last in eras)
            return bytes([8]) + (0x4000 | len(body)).to_bytes(2, "big") + body

        decode_flow.control(frame((1, 2), (3, 3), (9, 0)))
        for eras in (((0, 0),), ((2, 1),), ((1, 0), (2, 3)), ((1, 5), (5, 6)), ((5, 6), (1, 2))):
            with self.assertRaises(decode_flow.Wrong, msg=eras):
                decode_flow.control(frame(*eras))

    def test_blake3(self):
        """The test vectors that the authors of BLAKE3 publish: a key, and bytes that count up to 250."""
        key = b"whats the Elvish word for friend"
        for length, begin in KEYED_HASHES.items():
            data = bytes(n % 251 for n in range(length))
            self.assertEqual(decode_flow.blake3_keyed(key, data)[:16].hex(), begin, length)

    def all_are_noticed(self, vectors, check, free=()):
        count = 0
        for what, changed in changes(vectors, free):
            count += 1
            with self.assertRaises(decode_flow.Wrong, msg=what):
                check(changed)
        self.assertGreater(count, 30)

    def test_a_vector_that_is_missing(self):
        vectors = decode_flow.read_vectors(RECORDING)
        for n in range(len(vectors)):
            with self.assertRaises(decode_flow.Wrong, msg=vectors[n]["name"]):
                decode_flow.check(PROTOCOL, write(vectors[:n] + vectors[n + 1 :]))


if __name__ == "__main__":
    unittest.main()
