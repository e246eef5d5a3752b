"""A relay on the loopback between a client and the server that keeps what was said, and a watch for traffic that goes anywhere else."""
import http.client
import http.server
import json
import socket
import threading


class Exchange:
    """One request: path and body as JSON, the answer's status, and its bytes piece by piece as they came."""

    def __init__(self, path, body):
        self.path, self.body, self.status, self.pieces = path, body, None, []

    @property
    def text(self):
        return b"".join(self.pieces).decode()

    def events(self):
        """What a stream's data lines hold, without [DONE]."""
        lines = [line.removeprefix("data: ") for line in self.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


class Relay:
    def __init__(self, port):
        self.exchanges = exchanges = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words):
                pass

            def forward(self):
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                exchange = Exchange(self.path, json.loads(data) if data else None)
                exchanges.append(exchange)
                upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
                upstream.request(self.command, self.path, data, {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")})
                answer = upstream.getresponse()
                exchange.status = answer.status
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                while piece := answer.read1(65536):
                    exchange.pieces.append(piece)
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
                upstream.close()

            do_GET = do_POST = forward

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        # whoever wants to leave the machine is sent here by its proxy settings, and is told nothing
        self.outside, self.callers = socket.create_server(("127.0.0.1", 0)), []
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while True:
            try:
                caller, _ = self.outside.accept()
            except OSError:
                return
            self.callers.append(caller.recv(200))
            caller.close()

    def environment(self):
        proxy = f"http://127.0.0.1:{self.outside.getsockname()[1]}"
        return {name: proxy for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")} | {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.outside.close()
