#!/usr/bin/env python3
"""decode_flow.py must notice every vector that says something else than its bytes: one bit is changed at a time, in every
value of every vector that it reads, at the value's beginning, middle and end.

Two things are left alone: the hexadecimal text of packets that are dropped anyway, which may hold anything, and vectors of
docs/protocol.md that are no packets, which the crate's own tests check.
"""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
import decode_flow  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
PROTOCOL = (HERE / "protocol.md").read_text(encoding="utf-8")
RECORDING = (HERE / "vectors" / "recorded-flow.md").read_text(encoding="utf-8")


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


class Changed(unittest.TestCase):
    def test_as_written(self):
        decode_flow.check(PROTOCOL, RECORDING)

    def test_rewritten_without_a_change(self):
        packets = [v for v in decode_flow.read_vectors(PROTOCOL) if v["name"].startswith("packet-")]
        decode_flow.check(write(packets), write(decode_flow.read_vectors(RECORDING)))

    def test_one_bit_of_a_packet_vector(self):
        packets = [v for v in decode_flow.read_vectors(PROTOCOL) if v["name"].startswith("packet-")]
        # Names mean nothing there but how they begin.
        self.all_are_noticed(packets, lambda changed: decode_flow.check(write(changed), RECORDING), {"name"})

    def test_one_bit_of_the_recording(self):
        vectors = decode_flow.read_vectors(RECORDING)
        self.all_are_noticed(vectors, lambda changed: decode_flow.check(PROTOCOL, write(changed)))

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
