"""Requests in which a proxy and the server could see two different ends, or two hosts: 400 and the end of the connection, so that what
follows is never answered as a request of its own."""
import json

import pytest

LATER = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HOST = b"Host: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
AMBIGUOUS = {
    "length and chunked": HOST + b"Content-Length: 4\r\n" + CHUNKED,
    "chunked and length": HOST + CHUNKED + b"Content-Length: 100\r\n",
    "two lengths": HOST + b"Content-Length: 0\r\nContent-Length: %d\r\n" % len(LATER),
    "chunked and identity": HOST + CHUNKED + b"Transfer-Encoding: identity\r\n",
    "chunked twice": HOST + CHUNKED + CHUNKED,
    "another coding": HOST + b"Transfer-Encoding: xchunked\r\n",
    "gzip and chunked": HOST + b"Transfer-Encoding: gzip, chunked\r\n",
    "a blank behind the name": HOST + b"Transfer-Encoding : chunked\r\n",
    "two hosts": HOST + b"Host: evil.example\r\nContent-Length: 0\r\n",
}


@pytest.mark.parametrize("head", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_ambiguous_requests_end_the_connection(server, head):
    got = server.raw(b"POST /v1/tokenize HTTP/1.1\r\n" + head + b"\r\n0\r\n\r\n" + LATER)
    assert got.startswith(b"HTTP/1.1 400 ") and got.count(b"HTTP/1.1") == 1, got
    answer, body = got.split(b"\r\n\r\n", 1)
    assert json.loads(body)["error"]["code"] == "ambiguous_request" and b"connection: close" in answer.lower()


@pytest.mark.parametrize("head, rest", [(b"Content-Length: 14\r\n", b'{"text": "ab"}'), (b"transfer-encoding: Chunked\r\n", b'e\r\n{"text": "ab"}\r\n0\r\n\r\n')], ids=["length", "chunked"])
def test_one_reading_goes_on(server, head, rest):
    got = server.raw(b"POST /v1/tokenize HTTP/1.1\r\n" + HOST + head + b"\r\n" + rest + LATER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert got.count(b"HTTP/1.1 200 ") == 2, got
