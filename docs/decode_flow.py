#!/usr/bin/env python3
"""Decodes the recorded flow of docs/vectors/recorded-flow.md by what docs/protocol.md says, and by nothing else.

A second implementation of the receiving end's bytes, made to be read: it shares no code with the crate. It first holds
itself to the packet vectors of docs/protocol.md, and verifies the signed update there. It needs Python 3.9 and the package `cryptography` (Debian:
python3-cryptography). Exit code 0: every step came out as written. 1: something did not, and it says what.

Section numbers are those of docs/protocol.md.
"""

import hashlib
import ipaddress
import json
import pathlib
import struct
import sys
import uuid

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

HERE = pathlib.Path(__file__).resolve().parent
AES_128_GCM, CHACHA20_POLY1305 = 0x1301, 0x1303


class Wrong(Exception):
    """Something is not as it is written."""


def expect(what, found, written):
    if found != written:
        raise Wrong(f"{what}: {found!r} is found, {written!r} is written")


# Section 1: vectors.


def read_vectors(text):
    """The vectors of a document, as dictionaries in the document's order."""
    vectors, fields, last = [], None, None
    for line in text.splitlines():
        if fields is None:
            fields = {} if line.rstrip() == "```vector" else None
        elif line.startswith("```"):
            vectors.append(fields)
            fields = None
        elif line.startswith(" "):
            fields[last] += line.strip()
        else:
            last, _, value = line.partition(":")
            fields[last] = value.strip()
    return vectors


class Reader:
    """Takes fields off the front of bytes."""

    def __init__(self, data):
        self.data = data

    def take(self, length):
        if length > len(self.data):
            raise Wrong("the bytes end within a field")
        taken, self.data = self.data[:length], self.data[length:]
        return taken

    def number(self, length):
        return int.from_bytes(self.take(length), "big")

    def varint(self):
        """RFC 9000 section 16."""
        if not self.data:
            raise Wrong("the bytes end within a field")
        length = 1 << (self.data[0] >> 6)
        return self.number(length) & ((1 << (8 * length - 2)) - 1)

    def rest(self):
        return self.take(len(self.data))


# Section 4: control frames. Each function gives the fields that the vectors have.


def welcome(r):
    expect("channels in WELCOME", r.varint(), 1)
    return {
        "channel": str(r.varint()),
        "channel-name": r.take(r.varint()).decode(),
        "incarnation": str(uuid.UUID(bytes=r.take(16))),
        "head": str(r.varint()),
        "first": str(r.varint()),
    }


def flow_id(r):
    expect("length of a Flow ID", r.number(1), 8)
    return r.take(8).hex()


def address(r, version):
    if version not in (4, 6):
        raise Wrong(f"IP version {version}")
    return str(ipaddress.ip_address(r.take(4 if version == 4 else 16)))


def announce(r):
    fields = {"flow-id": flow_id(r), "sequence": str(r.varint())}
    version = r.number(1)
    fields["fixed-endpoint"] = f"{address(r, version)} {address(r, version)} {r.number(2)}"
    fields["ack-delay"] = str(r.number(8))
    while r.data:
        kind, value = r.varint(), Reader(r.take(r.varint()))
        if kind == 0x03:
            endpoints = []
            while value.data:
                version, with_source = value.number(1), value.number(1)
                source = address(value, version) if with_source else "any"
                endpoints.append(f"{source} {address(value, version)} {value.number(2)}")
            fields["endpoints"] = ", ".join(endpoints)
        else:
            name = {0x01: "flow-index", 0x02: "channel", 0x05: "heartbeat"}.get(kind, f"TLV {kind}")
            fields[name] = str(value.varint())
    return fields


def key(r):
    return {
        "flow-id": flow_id(r),
        "sequence": str(r.varint()),
        "first-pn": str(r.varint()),
        "secret": r.take(r.varint()).hex(),
        "algorithm": f"{r.number(8):04x}",
    }


def rung(r):
    fields = {"flow-id": flow_id(r)}
    for name in ("sequence", "path", "first-pn", "cause"):
        fields[name] = str(r.varint())
    if r.data:
        fields["anchor-seq"], fields["anchor-offset"] = str(r.varint()), str(r.varint())
    return fields


def need(r):
    return {name: str(r.varint()) for name in ("channel", "seq", "offset", "length", "reason")}


def lineage(r):
    channel, count, eras, end = r.varint(), r.varint(), [], 0
    expect("more than 256 eras", count > 256, False)
    for _ in range(count):
        first, last = r.varint(), r.varint()
        incarnation, public_key = uuid.UUID(bytes=r.take(16)), r.take(32)
        # An open era, with last 0, has no end that another one could be beyond.
        if end is None or first <= end or 0 < last < first:
            raise Wrong(f"the era from {first} to {last} is not beyond those before it")
        end = last or None
        eras.append((first, end, incarnation, public_key))
    return {"channel": str(channel), "eras": eras}


CONTROL_FRAMES = {
    0x02: ("WELCOME", welcome),
    0x06: ("NEED", need),
    0x08: ("LINEAGE", lineage),
    0x10: ("FC_ANNOUNCE", announce),
    0x12: ("FC_KEY", key),
    0x14: ("FC_RUNG", rung),
}


def control(data):
    """The one frame in `data`."""
    r = Reader(data)
    kind = r.varint()
    body = Reader(r.take(r.varint()))
    if kind not in CONTROL_FRAMES or r.data:
        raise Wrong(f"not one control frame that is known here: {data.hex()}")
    name, read = CONTROL_FRAMES[kind]
    fields = {"frame": name, **read(body)}
    expect(f"bytes behind {name}", body.rest(), b"")
    return fields


# Section 5: packets.


class Epoch:
    """The keys of one FC_KEY."""

    def __init__(self, algorithm, secret, sequence=0, first_pn=0):
        if algorithm not in (AES_128_GCM, CHACHA20_POLY1305):
            raise Wrong(f"unknown algorithm {algorithm:04x}")
        self.chacha = algorithm == CHACHA20_POLY1305
        self.sequence, self.first_pn = sequence, first_pn
        length = 32 if self.chacha else 16
        self.key, self.iv, self.hp = (
            self.expand_label(secret, label, n)
            for label, n in ((b"quic key", length), (b"quic iv", 12), (b"quic hp", length))
        )
        self.aead = ChaCha20Poly1305(self.key) if self.chacha else AESGCM(self.key)

    @staticmethod
    def expand_label(secret, label, length):
        """HKDF-Expand-Label of RFC 8446 section 7.1 with an empty context."""
        label = b"tls13 " + label
        info = length.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
        return HKDFExpand(SHA256(), length, info).derive(secret)

    def mask(self, sample):
        """RFC 9001 section 5.4: the header's mask from the 16 bytes behind the packet number."""
        if self.chacha:
            return Cipher(algorithms.ChaCha20(self.hp, sample), None).encryptor().update(bytes(5))
        return Cipher(algorithms.AES(self.hp), modes.ECB()).encryptor().update(sample)[:5]

    def nonce(self, pn):
        return (int.from_bytes(self.iv, "big") ^ pn).to_bytes(12, "big")

    def open(self, packet, base):
        """(packet number, key phase, frames) of a packet; None if it does not verify under this key."""
        if len(packet) < 30:
            return None
        mask = self.mask(packet[13:29])
        flags = packet[0] ^ (mask[0] & 0x1F)
        if flags & ~0x04 != 0x43:
            return None
        low = bytes(a ^ b for a, b in zip(packet[9:13], mask[1:]))
        pn = full_pn(base, int.from_bytes(low, "big"))
        header = bytes([flags]) + packet[1:9] + low
        try:
            return pn, flags >> 2 & 1, self.aead.decrypt(self.nonce(pn), packet[13:], header)
        except InvalidTag:
            return None


def full_pn(base, low):
    """RFC 9000 appendix A.3: the number nearest to `base` with these low 32 bits."""
    window = 1 << 32
    pn = base - base % window + low
    if pn + window // 2 <= base and pn < (1 << 62) - window:
        return pn + window
    if pn > base + window // 2 and pn >= window:
        return pn - window
    return pn


# Sections 6 and 7: frames, updates, streams.


class Update:
    """An encoded update that comes together."""

    def __init__(self):
        self.data, self.have, self.total = bytearray(), set(), None

    def add(self, offset, data, total):
        end = offset + len(data)
        if total is not None:
            expect("length of an update", self.total in (None, total), True)
            self.total = total
        self.data.extend(bytes(max(0, end - len(self.data))))
        self.data[offset:end] = data
        self.have.update(range(offset, end))

    def whole(self):
        return self.total is not None and self.have == set(range(self.total))


class Flow:
    """A flow's packets, its key epochs, and the updates of its channel."""

    def __init__(self):
        self.flow, self.channel, self.epochs = None, None, []
        self.arrived, self.updates = set(), {}

    def update(self, seq):
        return self.updates.setdefault(seq, Update())

    def on_control(self, fields):
        if fields["frame"] == "FC_ANNOUNCE":
            self.flow, self.channel = fields["flow-id"], fields["channel"]
        elif fields["frame"] == "FC_KEY":
            algorithm, secret = int(fields["algorithm"], 16), bytes.fromhex(fields["secret"])
            epoch = Epoch(algorithm, secret, int(fields["sequence"]), int(fields["first-pn"]))
            # At most two epochs are live.
            self.epochs = self.epochs[-1:] + [epoch]

    def on_packet(self, packet):
        """Returns the fate of a datagram, as the fields of its vector."""
        if packet[0] & 0xC0 != 0x40 or packet[1:9].hex() != self.flow:
            return {"outcome": "dropped"}
        for epoch in self.epochs:
            base = max(self.arrived) + 1 if self.arrived else epoch.first_pn
            pn, phase, frames = epoch.open(packet, base) or (-1, 0, b"")
            if pn >= epoch.first_pn and phase == epoch.sequence & 1:
                outcome = "duplicate" if pn in self.arrived else "taken"
                self.arrived.add(pn)
                self.on_frames(Reader(frames))
                return {"outcome": outcome, "pn": str(pn), "key-sequence": str(epoch.sequence)}
        return {"outcome": "dropped"}

    def on_frames(self, r):
        while r.data:
            kind = r.varint()
            if kind in (0x00, 0x01):  # PADDING, PING
                continue
            if kind == 0x04:  # RESET_STREAM
                stream, _code, size = r.varint(), r.varint(), r.varint()
                self.update(seq_of(stream)).add(0, b"", size)
            elif 0x08 <= kind <= 0x0F:  # STREAM
                stream = r.varint()
                offset = r.varint() if kind & 0x04 else 0
                data = r.take(r.varint()) if kind & 0x02 else r.rest()
                total = offset + len(data) if kind & 0x01 else None
                self.update(seq_of(stream)).add(offset, data, total)
            elif kind == 0x30:  # DATAGRAM to the packet's end
                r.rest()
            elif kind == 0x31 or kind >= 0x40:  # DATAGRAM; extensions
                r.take(r.varint())
            else:
                raise Wrong(f"a frame of type {kind:#x} on a flow")

    def on_stream(self, data):
        """A range of an update on the unicast path, as the fields that its vector has."""
        r = Reader(data)
        expect("kind of a unicast stream", r.varint(), 1)
        channel, seq, encoding, total, offset = r.varint(), r.varint(), r.number(1), r.varint(), r.varint()
        expect("channel of a unicast stream", str(channel), self.channel)
        expect("encoding of the updates of this recording", encoding, 0)
        fields = {"channel": channel, "seq": seq, "total": total, "offset": offset, "length": len(r.data)}
        self.update(seq).add(offset, r.rest(), total)
        return {name: str(value) for name, value in fields.items()}


def seq_of(stream):
    """The update that a stream of the flow carries (section 7.2)."""
    expect("kind of a flow's stream", (stream % 4, stream >= 7), (3, True))
    return stream // 4


# Section 7.5: signed updates.

SIGNED, ED25519_BLAKE3, MAX_HEADER, MAX_CHUNKS = 2, 1, 1056, 56
CONTEXT = b"flexfeed update 1\0"


def blake3_keyed(key, data):
    """The first 32 bytes of BLAKE3 in its keyed mode (section 2 of the BLAKE3 paper)."""
    start, end, parent, root, keyed = 1, 2, 4, 8, 16
    iv = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
    order = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
    columns = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
    diagonals = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
    key = struct.unpack("<8I", key)

    def compress(chaining, block, counter, flags):
        v = [*chaining, *iv[:4], counter & 0xFFFFFFFF, counter >> 32, len(block), flags | keyed]
        m = struct.unpack("<16I", block.ljust(64, b"\0"))
        for _ in range(7):
            for n, (a, b, c, d) in enumerate(columns + diagonals):
                for word, left, right in ((m[2 * n], 16, 12), (m[2 * n + 1], 8, 7)):
                    v[a] = (v[a] + v[b] + word) & 0xFFFFFFFF
                    v[d] = turn(v[d] ^ v[a], left)
                    v[c] = (v[c] + v[d]) & 0xFFFFFFFF
                    v[b] = turn(v[b] ^ v[c], right)
            m = [m[place] for place in order]
        return [v[n] ^ v[n + 8] for n in range(8)]

    def turn(word, bits):
        return (word >> bits | word << (32 - bits)) & 0xFFFFFFFF

    def tree(data, counter, flags):
        """The chaining value of these bytes, the first of which are in the chunk `counter`."""
        if len(data) > 1024:
            # The left part is the largest power of two of chunks that leaves something for the right one.
            left = 1024 << ((len(data) - 1) // 1024).bit_length() - 1
            both = tree(data[:left], counter, 0) + tree(data[left:], counter + left // 1024, 0)
            return compress(key, struct.pack("<16I", *both), 0, parent | flags)
        chaining, blocks = key, [data[at : at + 64] for at in range(0, len(data), 64)] or [b""]
        for n, block in enumerate(blocks):
            last = n + 1 == len(blocks)
            chaining = compress(chaining, block, counter, (start if n == 0 else 0) | (end | flags if last else 0))
        return chaining

    return struct.pack("<8I", *tree(data, 0, root))


def key_id(public_key):
    return hashlib.sha256(public_key).digest()[:8]


class SignedUpdate:
    """A signed update, taken apart; nothing in it means anything before it is verified."""

    def __init__(self, data):
        r = Reader(data)
        expect("encoding of a signed update", r.number(1), SIGNED)
        header = Reader(r.take(r.number(2)))
        expect("a header that fits one packet", 3 + len(header.data) <= MAX_HEADER, True)
        self.content = r.rest()
        self.signature = header.data[-64:]
        self.fields = header.take(len(header.data) - 64) if len(header.data) >= 64 else header.take(64)
        f = Reader(self.fields)
        expect("algorithm", f.number(1), ED25519_BLAKE3)
        self.key_id, self.incarnation = f.take(8), uuid.UUID(bytes=f.take(16))
        self.seq, self.deadline, length, self.chunk = f.varint(), f.varint(), f.varint(), f.varint()
        expect("seq and chunk length of 1 or more", self.seq > 0 and self.chunk > 0, True)
        expect("length of the content", len(self.content), length)
        self.salt, hashes = f.take(16), f.rest()
        self.hashes = [hashes[at : at + 16] for at in range(0, len(hashes), 16)]
        chunks = -(-length // self.chunk)
        expect("number of hashes", (len(hashes), chunks <= MAX_CHUNKS), (16 * chunks, True))

    def message(self, channel):
        name = channel.encode()
        return CONTEXT + len(name).to_bytes(8, "big") + name + self.fields

    def chunk_hash(self, index):
        data = self.content[index * self.chunk :][: self.chunk]
        return blake3_keyed(self.salt + index.to_bytes(16, "big"), data)[:16]

    def verify(self, channel, seq, eras):
        """Raises Wrong unless the source of this lineage signed it as this update of this channel."""
        era = [e for e in eras if e[0] <= seq and (e[1] is None or seq <= e[1])]
        expect(f"eras that update {seq} lies in", len(era), 1)
        _, _, incarnation, public_key = era[0]
        stated = (self.seq, self.incarnation, self.key_id)
        expect("seq, incarnation and key of the header", stated, (seq, incarnation, key_id(public_key)))
        try:
            Ed25519PublicKey.from_public_bytes(public_key).verify(self.signature, self.message(channel))
        except InvalidSignature as error:
            raise Wrong("the header is not signed by the key of its era") from error
        expect("hashes of the content", [self.chunk_hash(n) for n in range(len(self.hashes))], self.hashes)


# Output.


def check_signatures(protocol):
    """Verifies the signed update of docs/protocol.md by the lineage there; returns what there is to tell."""
    try:
        vectors = {vector["name"]: vector for vector in read_vectors(protocol)}
        signed, eras_of = vectors["signed-update"], vectors["lineage"]
        field = lambda name: bytes.fromhex(signed[name])  # noqa: E731
        announced = control(bytes.fromhex(eras_of["hex"]))
        old, new = bytes.fromhex(eras_of["old-key"]), bytes.fromhex(eras_of["key"])
        # What the text behind the vectors says of them.
        old_seed, before = bytes(range(0x40, 0x60)), uuid.UUID("8d1f2ce0-7a5b-4c0e-9d6f-3b2a10c4e5d7")
        update = SignedUpdate(field("hex"))
        eras = [(101, 300, before, old), (301, None, update.incarnation, new)]
        expect("lineage", announced, {"frame": "LINEAGE", "channel": "1", "eras": eras})
        for seed, key in ((field("seed"), new), (field("seed"), field("public-key")), (old_seed, old)):
            public = Ed25519PrivateKey.from_private_bytes(seed).public_key()
            expect("public key of a seed", public.public_bytes(Encoding.Raw, PublicFormat.Raw), key)
        found = {
            "key-id": update.key_id,
            "salt": update.salt,
            "hash": b"".join(update.hashes),
            "message": update.message(signed["channel"]),
            "signature": update.signature,
        }
        for name, value in found.items():
            expect(f"signed-update, {name}", value, field(name))
        update.verify(signed["channel"], 301, announced["eras"])
        content = bytes.fromhex(vectors["encoded-update"]["hex"])
        expect("signed-update, content, deadline", (update.content, update.deadline), (content, 0))
        forged = {"frame": "NEED", "channel": "1", "seq": "305", "offset": "0", "length": "0", "reason": "4"}
        expect("need-forged", control(bytes.fromhex(vectors["need-forged"]["hex"])), forged)
        return f"update {update.seq} verified by the second of {len(eras)} eras"
    except (ValueError, KeyError, IndexError, OverflowError, TypeError) as error:
        raise Wrong(f"a vector that cannot be read: {type(error).__name__} {error}") from error


def check_packet_vector(vector):
    """A packet vector of docs/protocol.md with all its intermediate values."""
    field = lambda name: bytes.fromhex(vector[name])  # noqa: E731
    epoch = Epoch(int(vector["algorithm"], 16), field("secret"))
    pn, packet = int(vector["pn"]), field("packet")
    for name, found in (("key", epoch.key), ("iv", epoch.iv), ("hp", epoch.hp), ("nonce", epoch.nonce(pn))):
        expect(f"{vector['name']}, {name}", found.hex(), field(name).hex())
    expect(f"{vector['name']}, mask", epoch.mask(packet[13:29]).hex(), field("mask").hex())
    expect(f"{vector['name']}, flow-id", packet[1:9].hex(), field("flow-id").hex())
    opened = epoch.open(packet, pn)
    expect(f"{vector['name']}, packet", opened, (pn, int(vector["key-phase"]), field("frames")))


def check_authentication(vectors):
    """The vectors of section 5.5: a signed packet, a signed stream, and the tag of a packet in a packet of tags."""
    signed = vectors["packet-signed"]
    datagram, key = bytes.fromhex(signed["datagram"]), bytes.fromhex(signed["key"])
    packet, signature = datagram[:-64], datagram[-64:]
    pair = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(signed["seed"]))
    expect("packet-signed, key", pair.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw), key)
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, b"flexfeed packet 1\0" + packet)
    except InvalidSignature as error:
        raise Wrong("packet-signed: the signature is wrong") from error
    plain = bytes([packet[0] ^ 0x20]) + packet[1:]
    expect("packet-signed, packet", (packet[0] & 0x20, plain.hex()), (0x20, signed["packet"]))
    stream, update = vectors["frame-stream-signature"], vectors["encoded-update"]
    pair = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(stream["seed"]))
    expect("frame-stream-signature, key", pair.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw), key)
    r = Reader(bytes.fromhex(stream["hex"]))
    expect("frame-stream-signature, type, length and update", (r.varint(), r.varint(), seq_of(r.varint())), (0x40, 66, 301))
    message = b"flexfeed stream 1\0" + (301).to_bytes(8, "big") + bytes.fromhex(update["hex"])
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(r.rest(), message)
    except InvalidSignature as error:
        raise Wrong("frame-stream-signature: the signature is wrong") from error
    tags, epoch = vectors["packet-tags"], vectors["packet-aes-128-gcm"]
    secret = HKDFExpand(SHA256(), 32, b"flexfeed tags").derive(bytes.fromhex(epoch["secret"]))
    expect("packet-tags, secret", secret.hex(), tags["secret"])
    opened = Epoch(AES_128_GCM, secret).open(bytes.fromhex(tags["packet"]), int(tags["pn"]))
    frames = bytes.fromhex(tags["frames"])
    expect("packet-tags, flow-id", tags["packet"][2:18], tags["flow-id"])
    expect("packet-tags, packet", opened, (int(tags["pn"]), int(tags["key-phase"]), frames))
    gmac = AESGCM(bytes.fromhex(tags["tag-secret"]))
    nonce = bytes(4) + int(epoch["pn"]).to_bytes(8, "big")
    tag = gmac.encrypt(nonce, b"", bytes.fromhex(epoch["packet"])).hex()
    entry = int(epoch["pn"]).to_bytes(1, "big") + b"\1" + (7).to_bytes(4, "big")
    expect("packet-tags, tag", (tag, frames), (tags["tag"], entry + bytes.fromhex(tag)))


def check_recording(vectors):
    """Decodes the recording event by event; returns what there is to tell."""
    flow, incarnation, delivered = Flow(), None, 0
    for n, vector in enumerate(vectors, 1):
        fields = {name: value for name, value in vector.items() if name not in ("name", "kind", "hex")}
        name, kind, data = vector["name"], vector.get("kind"), bytes.fromhex(vector.get("hex", ""))
        if kind is None:
            update = flow.updates.pop(int(fields["seq"]), Update())
            expect("name", name, f"recorded-update-{fields['seq']}")
            expect(f"{name} is whole", update.whole(), True)
            found = {"length": str(update.total), "sha256": hashlib.sha256(update.data).hexdigest()}
            expect(name, {"seq": fields["seq"], **found}, fields)
            # Section 7.1: the event that the update carries names itself.
            expect(f"{name}, encoding", update.data[0], 0)
            expect(f"{name}, event", json.loads(update.data[1:])["id"], f"{incarnation}/{fields['seq']}")
            delivered += 1
            continue
        expect("name", name, f"recorded-{n:02}")
        if kind == "control":
            found = control(data)
            incarnation = found.get("incarnation", incarnation)
            flow.on_control(found)
        elif kind == "flow":
            found = flow.on_packet(data)
        elif kind == "stream":
            found = flow.on_stream(data)
        else:
            raise Wrong(f"{name}: an event of the unknown kind {kind!r}")
        expect(name, found, fields)
    expect("updates without a vector", sorted(flow.updates), [])
    if not delivered or not flow.arrived:
        raise Wrong("the recording is empty")
    return f"{len(flow.arrived)} packets, {delivered} updates"


def check(protocol, recording):
    """Checks the texts of both documents; returns what there is to tell, raises Wrong."""
    try:
        packets = [vector for vector in read_vectors(protocol) if "algorithm" in vector]
        for vector in packets:
            check_packet_vector(vector)
        expect("algorithms of the packet vectors", {v["algorithm"] for v in packets}, {"1301", "1303"})
        check_authentication({vector["name"]: vector for vector in read_vectors(protocol)})
        return f"{len(packets)} packet vectors; {check_recording(read_vectors(recording))}"
    except (ValueError, KeyError, IndexError, OverflowError, TypeError) as error:
        raise Wrong(f"a vector that cannot be read: {type(error).__name__} {error}") from error


def main():
    try:
        protocol = (HERE / "protocol.md").read_text(encoding="utf-8")
        recording = (HERE / "vectors" / "recorded-flow.md").read_text(encoding="utf-8")
        print(f"decode_flow.py: all as written: {check(protocol, recording)}; {check_signatures(protocol)}")
    except (Wrong, OSError) as error:
        print(f"decode_flow.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
