#!/usr/bin/env python3
"""Sends random requests to `bireme serve` over its socket, as hostile clients do.

    scripts/clients/fuzz_server.py PROGRAM CHECKPOINT [SECONDS] [SEED]

Starts the server, preferably one with the address sanitizer (`cmake --preset asan`). Eight clients
at a time change valid requests: they flip, insert, remove and repeat bytes, replace JSON values,
send parts with pauses, close early, or never read. Every second a valid request must be answered.
At the end SIGTERM must end the server with exit code 0. Prints the number of requests and of
answers of each status; exit code 1 after a finding. SECONDS is 60 by default.
"""
import collections
import json
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request

CLIENTS = 8
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/fill-mask",
         "/v1/classify", "/v1/answer", "/v1/models", "/health", "/metrics", "/", "/v1", "/../x"]
BODY_PATHS = PATHS[:1] * 4 + PATHS[1:2] + PATHS[2:6]  # of the bodies
BODIES = [
    {"prompt": "the", "max_tokens": 5, "temperature": 0.5, "seed": 1, "logprobs": 3, "n": 2},
    {"prompt": ["the", "a"], "max_tokens": 4, "stream": True, "stop": ["e", "x"], "echo": True},
    {"prompt": [1, 2, 3], "max_tokens": 0, "echo": True, "logprobs": 0},
    {"prompt": [[1, 2], [3]], "top_k": 3, "top_p": 0.5, "repetition_penalty": 1.2},
    {"messages": [{"role": "user", "content": "list files"}], "max_tokens": 6, "stream": True,
     "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2},
    {"input": ["list", "files"], "encoding_format": "base64", "model": "any"},
    {"input": "the [MASK] of", "top_k": 3},
    {"input": "the work"},
    {"question": "of it?", "context": "the work of it"},
]
VALUES = [None, True, -1, 0, 1, 1.5, 1e308, -1e308, 2**63, 2**64, "", "\u0000", "\ud800", "é" * 50,
          [], {}, [[]], [None], [1e9], ["a"] * 300, {"a": {"b": []}}, "x" * 5000]
TEXTS = [b"NaN", b"1e999", b"\xff\xfe", b"\\u0000", b"\\ud800", b"[" * 3000, b"{\"a\":" * 500,
         b"Content-Length: 18446744073709551616\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n\r\n",
         b"\0", b"Expect: 100-continue\r\n", b"ffffffffffffffff\r\n", b"HTTP/9.9", b"%00", b"%"]


def change_value(value, r):
    if isinstance(value, dict) and value and r.random() < 0.8:
        key = r.choice(list(value))
        changed = dict(value)
        if r.random() < 0.1:
            changed.pop(key)
            return changed
        changed[key] = change_value(value[key], r)
        return changed
    if isinstance(value, list) and value and r.random() < 0.6:
        index = r.randrange(len(value))
        return value[:index] + [change_value(value[index], r)] + value[index + 1:]
    return r.choice(VALUES)


def make_request(r):
    index = r.randrange(len(BODIES))
    path, body = BODY_PATHS[index] if r.random() < 0.8 else r.choice(PATHS), BODIES[index]
    for _ in range(r.choice([0, 0, 1, 2])):
        body = change_value(body, r)
    data = json.dumps(body).encode("utf-8", "surrogatepass")
    method = b"POST" if r.random() < 0.9 else r.choice([b"GET", b"PUT", b"HEAD", b"OPTIONS", b"X"])
    head = method + b" " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
    if r.random() < 0.2:
        parts = [data[i:i + 7] for i in range(0, len(data), 7)]
        data = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"
        head += b"Transfer-Encoding: chunked\r\n"
    else:
        head += b"Content-Length: %d\r\n" % (len(data) + r.choice([0] * 8 + [1, -1, 1000]))
    return head + b"\r\n" + data


def change_bytes(data, r):
    data = bytearray(data)
    for _ in range(r.choice([0, 0, 1, 2, 8])):
        at = r.randrange(len(data) + 1)
        kind = r.randrange(4)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << r.randrange(8)
        elif kind == 1:
            data[at:at] = r.choice(TEXTS)
        elif kind == 2:
            del data[at:at + r.randrange(40)]
        else:
            data[at:at] = data[at:at + r.randrange(200)]
    return bytes(data)


def send_request(address, data, r):
    """Sends a request and returns the status of its answer, or what happened instead."""
    with socket.create_connection(address, timeout=5) as s:
        if r.random() < 0.1:
            data = data[:r.randrange(len(data) + 1)]
        if r.random() < 0.1:
            middle = r.randrange(len(data) + 1)
            s.sendall(data[:middle])
            time.sleep(r.random() * 0.1)
            s.sendall(data[middle:])
        else:
            s.sendall(data)
        if r.random() < 0.2:
            return "not read"
        s.settimeout(1)
        line = s.recv(100 if r.random() < 0.3 else 100000).split(b"\r\n")[0]
        return line.split(b" ")[1].decode() if line.startswith(b"HTTP/1.1 ") else "closed"


def run_client(address, seed, end, counts):
    r = random.Random(seed)
    while time.monotonic() < end:
        try:
            result = send_request(address, change_bytes(make_request(r), r), r)
        except socket.timeout:
            result = "no answer in a second"
        except OSError:
            result = "closed"
        counts[result] += 1


def check_answers(url, server, end):
    """Requires an answer to a valid request every second; returns the longest time of one."""
    longest = 0
    while time.monotonic() < end and server.poll() is None:
        begin = time.monotonic()
        with urllib.request.urlopen(url + "/v1/models", timeout=30) as reply:
            assert reply.status == 200
        longest = max(longest, time.monotonic() - begin)
        time.sleep(1)
    return longest


def main():
    program, checkpoint = sys.argv[1:3]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 60
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else int(time.time())
    server = subprocess.Popen([program, "serve", "--checkpoint", checkpoint, "--port", "0",
                               "--max-body-bytes", "100000", "--timeout", "20"],
                              stdout=subprocess.PIPE, text=True)
    url = server.stdout.readline().split()[-1]
    host, port = url.removeprefix("http://").split(":")
    end = time.monotonic() + seconds
    counts = [collections.Counter() for _ in range(CLIENTS)]
    threads = [threading.Thread(target=run_client, daemon=True,
                                args=((host, int(port)), seed * CLIENTS + i, end, counts[i]))
               for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    longest = check_answers(url, server, end)
    for thread in threads:
        thread.join()
    assert server.poll() is None, f"the server ended with {server.poll()}; seed {seed}"
    server.terminate()
    code = server.wait(timeout=120)
    total = sum(counts, collections.Counter())
    print(f"seed {seed}: {sum(total.values())} requests in {seconds:.0f} s: "
          + ", ".join(f"{k}: {v}" for k, v in sorted(total.items())))
    print(f"longest answer to a valid request: {longest:.2f} s; exit code {code}")
    sys.exit(0 if code == 0 and total["200"] > 0 and total["400"] > 0 else 1)


if __name__ == "__main__":
    main()
