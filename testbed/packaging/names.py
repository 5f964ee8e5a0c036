"""A name service for one command: python3 names.py ADDRESS COMMAND … answers every question for an IPv4 address by ADDRESS.

It listens on port 53 of this machine's own address, so it runs where no other program does: in an empty network namespace.
"""

import socket
import subprocess
import sys
import threading


def answer(question, address):
    """The packet that answers a question (RFC 1035, 4.1): with the address if it asks for one of IPv4, else that there is none."""
    end = question.index(b"\0", 12) + 5
    is_for_ipv4 = question[end - 4 : end - 2] == b"\0\1"
    head = question[:2] + b"\x81\x80" + b"\0\1" + (b"\0\1" if is_for_ipv4 else b"\0\0") + b"\0\0\0\0"
    record = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton(address) if is_for_ipv4 else b""
    return head + question[12:end] + record


def serve(server, address):
    """Answers for ever."""
    while True:
        question, who = server.recvfrom(2000)
        server.sendto(answer(question, address), who)


def main(address, *command):
    """The command's exit code."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    threading.Thread(target=serve, args=(server, address), daemon=True).start()
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
