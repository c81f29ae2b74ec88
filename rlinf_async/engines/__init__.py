"""Inference engines for language models as worker groups: vLLM, transformers, and vLLM's own server over HTTP.

Loading this package loads neither torch nor an engine: each name is loaded on first use.
"""

from typing import TYPE_CHECKING

from rlinf_async._public_names import lazy_names

if TYPE_CHECKING:
    from rlinf_async.engines.engine import Engine as Engine
    from rlinf_async.engines.engine_group import EngineGroup as EngineGroup
    from rlinf_async.engines.generation import Chunk as Chunk, Completion as Completion, Request as Request
    from rlinf_async.engines.openai_server import OpenAIServer as OpenAIServer, Turn as Turn
else:
    __getattr__, __dir__ = lazy_names(__name__)
