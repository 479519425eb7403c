"""Routes of the engine: ``GET /tlt/status`` tells, ``POST /tlt/train`` orders, the latter only if it is enabled."""

import asyncio
from argparse import Namespace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from fastapi import APIRouter, FastAPI, HTTPException, Request
from vllm import envs

from tlt_engine.server.metrics import Metrics

if TYPE_CHECKING:
    from starlette.datastructures import State
    from vllm.engine.protocol import EngineClient

METHOD = "tlt"

router = APIRouter(prefix="/tlt", tags=["tlt"])


class TrainOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /tlt/train``."""

    mode: Literal["auto", "on", "off"]


@router.get("/status")
async def status(request: Request) -> dict[str, Any]:
    """Returns the state of the first worker; every rank of a tensor-parallel group drafts the same."""
    states: list[dict[str, Any]] = await _engine(request).collective_rpc("tlt_status")
    return states[0]


@router.post("/train")
async def train(request: Request) -> dict[str, Any]:
    """Switches the background trainer of every worker that has one."""
    engine = _engine(request)
    _admit(request)
    try:
        order = msgspec.json.decode(await request.body(), type=TrainOrder)
    except msgspec.MsgspecError as error:
        raise HTTPException(400, f'expected {{"mode": "auto"}}, "on" or "off": {error}') from None
    states: list[dict[str, Any]] = await engine.collective_rpc("tlt_status")
    if states[0]["training"] is None:
        raise HTTPException(409, f"there is no background trainer here: {states[0]['training_refusal']}")
    await engine.collective_rpc("tlt_train", args=(order.mode,))
    return {"mode": order.mode}


def _engine(request: Request) -> "EngineClient":
    engine = getattr(request.app.state, "tlt_engine_client", None)
    if engine is None:
        raise HTTPException(404, "this server does not run method 'tlt'; start it with --speculative-model tlt")
    return engine


def _admit(request: Request) -> None:
    """Lets an order pass if orders are enabled and, where the server has a key, the request brings it."""
    # Only here: whoever serves without us must not depend on where vLLM keeps it.
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

    state = request.app.state
    if not state.tlt_takes_orders:
        raise HTTPException(
            403, 'orders are off; start the server with "admin_routes": true in --speculative-config to take them'
        )
    if state.tlt_keys and not AuthenticationMiddleware(request.app, state.tlt_keys).verify_token(request.headers):
        raise HTTPException(401, "this order needs the server's API key as a bearer token")


class TltEndpoints:
    """vLLM's endpoint-plugin contract."""

    name = "tlt_engine"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Adds the routes."""
        app.include_router(router)

    async def init_state(self, engine_client: "EngineClient | None", state: "State", args: Namespace) -> None:
        """Remembers the engine if it runs our method, and keeps its metrics fresh."""
        config = engine_client.vllm_config if engine_client is not None else None
        options = (config.additional_config or {}).get(METHOD) if config is not None else None
        state.tlt_engine_client = engine_client if options is not None else None
        if engine_client is None or options is None:
            return
        state.tlt_takes_orders = options["admin_routes"]
        state.tlt_keys = [key for key in (getattr(args, "api_key", None) or [envs.VLLM_API_KEY]) if key]
        state.tlt_metrics = asyncio.create_task(Metrics().follow(engine_client))
