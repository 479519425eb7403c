"""``GET /tlt/status``: what the engine drafts, what comes of it and what its buffers hold."""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, HTTPException, Request

if TYPE_CHECKING:
    from starlette.datastructures import State
    from vllm.engine.protocol import EngineClient

METHOD = "tlt"

router = APIRouter(prefix="/tlt", tags=["tlt"])


@router.get("/status")
async def status(request: Request) -> dict[str, Any]:
    """Returns the state of the first worker; every rank of a tensor-parallel group drafts the same."""
    engine = getattr(request.app.state, "tlt_engine_client", None)
    if engine is None:
        raise HTTPException(404, "this server does not run method 'tlt'; start it with --speculative-model tlt")
    states: list[dict[str, Any]] = await engine.collective_rpc("tlt_status")
    return states[0]


class TltEndpoints:
    """vLLM's endpoint-plugin contract."""

    name = "tlt_engine"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Adds the routes."""
        app.include_router(router)

    async def init_state(self, engine_client: "EngineClient | None", state: "State", args: Namespace) -> None:
        """Remembers the engine if it runs our method."""
        config = engine_client.vllm_config if engine_client is not None else None
        state.tlt_engine_client = engine_client if config and METHOD in (config.additional_config or {}) else None
