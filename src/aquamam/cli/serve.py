"""Serve models over HTTP: a JSON API, and a page that shows the posterior of a dropped image or a rotated object.

aquamam serve                                         the bundled die; open http://127.0.0.1:8000
aquamam serve runs/part part2=runs/part2 --port 9000  two models: "part" and "part2"
aquamam serve robots/die.onnx --threads 2             a model from aquamam export
curl -F image=@die.png http://127.0.0.1:8000/v1/predict

Beyond this computer (--host) callers must show a token (--token, or AQUAMAM_TOKEN), as Authorization: Bearer TOKEN; the
page takes it from its address, http://HOST:PORT/#token=TOKEN. A proxy in front has to encrypt it.
"""

import argparse
import ipaddress
import logging
import os
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

from aquamam.cli.main import add, given, load_model, whole
from aquamam.errors import InputError

# option -> field of Limits, what it limits
OPTIONS = {
    "--max-upload": ("upload_bytes", "bytes of a request (413)"),
    "--max-pixels": ("pixels", "pixels of an image (413)"),
    "--max-rotations": ("rotations", "rotations in a request (422)"),
    "--max-samples": ("samples", "samples behind modes in a request (422)"),
    "--max-seconds": ("seconds", "seconds for an answer (503)"),
    "--max-queue": ("queue", "requests at once (429)"),
    "--max-batch": ("batch", "images through the network together"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    models = "a bundled model's name, a checkpoint, or an exported .onnx (default: die)"
    option("models", nargs="*", default=["die"], metavar="[NAME=]MODEL", help=models)
    option("--host", default="127.0.0.1", help="address to listen on")
    option("--token", help="what callers must show (default: AQUAMAM_TOKEN)")
    option("--port", type=whole(0, 65535), default=8000, metavar="N", help="0 takes a free one")
    add(parser, "--device", "--engine", "--threads")
    for name, (field, what) in OPTIONS.items():
        option(name, dest=field, metavar="N", type=float if field == "seconds" else int, help=f"most {what}")
    add(parser, "--quiet", help="no line in the log for each request")


def run(args: argparse.Namespace) -> None:
    import torch

    try:
        import python_multipart  # noqa: F401  # without it there are no forms, which is told only when one comes
        import uvicorn

        from aquamam.serving.app import create_app
        from aquamam.serving.gate import LOG, JsonLines, Limits
    except ImportError as error:
        raise InputError(f"serving needs {error.name}; try pip install 'aquamam[serve]'.") from error
    limits = Limits(**given(args, *(field for field, _ in OPTIONS.values())))
    token = os.environ.get("AQUAMAM_TOKEN", "") if args.token is None else args.token
    torch.set_num_threads(args.threads or torch.get_num_threads())
    with listen(args.host, args.port) as listener:  # before the models are read: a port that is taken is told at once
        models: dict[str, Any] = {}
        for text in args.models:
            name, _, path = text.partition("=") if "=" in text else (name_of(text), "", text)
            if not name or name in models:
                raise InputError(f"models need different names, got {text!r}; try other={path or 'die'}.")
            models[name] = load_model(path, args.device, args.engine)
        app = create_app(models, limits, token)
        handler = logging.StreamHandler()  # one JSON object a line; what is wrong with requests is in it once
        handler.setFormatter(JsonLines())
        logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
        LOG.setLevel(logging.WARNING if args.quiet else logging.INFO)
        logging.getLogger("python_multipart").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="PIL")
        app.state.service.warm_up()
        host, port = listener.getsockname()[:2]
        print(f"aquamam serves {', '.join(models)} on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        if not ipaddress.ip_address(host).is_loopback and not token:
            open_to_all = "other computers can reach this service, and it asks nobody who they are; give a --token"
            print(f"aquamam: {open_to_all}.", file=sys.stderr)
        plain: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
        plain |= {"timeout_keep_alive": 10, "timeout_graceful_shutdown": int(limits.seconds) + 1}
        plain["limit_concurrency"] = 4 * limits.queue + 16  # idle connections count too
        # uvicorn ends well on these signals and then raises them again, for others to see; here nobody is left
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, lambda *_: None)
        uvicorn.Server(uvicorn.Config(app, **plain)).run(sockets=[listener])


def name_of(path: str) -> str:
    """A short name: of runs/die/best.safetensors it is "die"."""
    stem = Path(path).name
    for ending in (".safetensors", ".onnx", ".json", ".encoder"):
        stem = stem.removesuffix(ending)
    return Path(path).resolve().parent.name if stem in ("best", "last", "model") else stem


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, or one sentence."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)  # type: ignore[arg-type]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot listen on {host} port {port} ({reason}); try another --port or --host.") from None
