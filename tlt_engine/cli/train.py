"""``tlt-engine train``: switches the background trainer of a running server."""

import argparse
import json
import os
import urllib.error
import urllib.request

TIMEOUT_S = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("mode", choices=("auto", "on", "off"), help="when there is time, always, or not at all")
    parser.add_argument("--url", required=True, help="of the server, such as http://localhost:8000")
    parser.add_argument("--api-key", default=os.environ.get("VLLM_API_KEY"), help="of the server, if it has one")


def run(options: argparse.Namespace) -> int:
    """Sends the order.

    Args:
        options: see ``add_arguments``.

    Raises:
        ValueError: the server refuses, and why; or the address is none.
        RuntimeError: no server answers.
    """
    if not options.url.startswith(("http://", "https://")):
        raise ValueError(f"--url {options.url}: expected an address such as http://localhost:8000")
    request = urllib.request.Request(  # noqa: S310 - http and https only
        f"{options.url.rstrip('/')}/tlt/train",
        data=json.dumps({"mode": options.mode}).encode(),
        headers={"Content-Type": "application/json"},
    )
    if options.api_key:
        request.add_header("Authorization", f"Bearer {options.api_key}")
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_S).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        raise ValueError(f"{options.url} refuses: {_reason(error)}") from None
    except OSError as error:
        raise RuntimeError(f"{options.url} does not answer: {error}") from None
    print(f"training: {options.mode}")
    return 0


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {text[:200]}"
