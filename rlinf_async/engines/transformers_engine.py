"""``TransformersEngine``: runs a transformers model in the rank's own process, for machines without vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import torch

from rlinf_async._core.own_logger import own_logger
from rlinf_async.configuration import did_you_mean
from rlinf_async.engines.engine import Engine, EngineSettings, OnUpdate, Trainer
from rlinf_async.engines.generation import Chunk, FinishReason, Request
from rlinf_async.errors import ClosedError, ConfigError, DeadlineExceeded, PeerLost
from rlinf_async.weights.links.worker_link import WorkerLink
from rlinf_async.weights.plane.subscriber import Subscriber
from rlinf_async.weights.state import messages
from rlinf_async.weights.waiting.execution import outlast

try:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.generation.logits_process import LogitsProcessorList
    from transformers.generation.stopping_criteria import StoppingCriteriaList
except ModuleNotFoundError as error:
    raise ImportError(
        f"EngineGroup('transformers') needs transformers, and {error.name or 'a part of it'} is not installed here: "
        "pip install transformers"
    ) from error

logger = own_logger(__name__)

_BATCH_SIZE: Final = 64
# These ``engine_options`` are accepted: they only truncate the distribution, so log probabilities remain the model's
# own.
_SAMPLING_OPTIONS: Final = ("min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")

# The character with which a tokenizer replaces an incomplete character at the end of the tokens.
_UNFINISHED: Final = "\ufffd"


class TransformersEngine(Engine):
    """An engine that runs ``AutoModelForCausalLM`` with a key-value cache in a thread, one batch at a time.

    A batch consists of waiting requests with the same sampling parameters. All tokens of a completion come from one
    version: a version that arrives during a batch is loaded after it. The options are those of ``from_pretrained``, and
    ``batch_size``, the maximum number of requests per batch.
    """

    supported_updates: tuple[OnUpdate, ...] = ("wait",)

    def __init__(self, settings: EngineSettings, name: str) -> None:
        super().__init__(settings, name)
        options: dict[str, Any] = {"dtype": "auto", "local_files_only": True} | dict(settings.options)
        self._batch_size: Any = options.pop("batch_size", _BATCH_SIZE)
        if not isinstance(self._batch_size, int) or self._batch_size < 1:
            raise ConfigError(f"batch_size={self._batch_size!r} of EngineGroup: write a whole number from 1 on")
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                settings.model, local_files_only=options["local_files_only"]
            )
            model: Any = AutoModelForCausalLM.from_pretrained(settings.model, **options)
        except TypeError as error:
            raise ConfigError(f"from_pretrained of model {settings.model!r} refuses an option: {error}") from error
        except (OSError, ValueError) as error:
            words = str(error).partition("\n")[0]
            raise RuntimeError(f"transformers cannot load model {settings.model!r}: {words}") from error
        if "device_map" not in options and torch.cuda.is_available():
            model.cuda()
        self._model = model.eval().requires_grad_(False)
        ends = model.generation_config.eos_token_id
        self._end_tokens = {self._tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
        # Drop the checkpoint's own generation settings, such as penalties, which the requests did not ask for.
        model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
        text_config = model.config.get_text_config()
        self._longest: int | None = getattr(text_config, "max_position_embeddings", None)
        self._vocabulary = int(text_config.vocab_size)
        self._version = 0
        self._updates, self._pause_s = 0, 0.0
        self._subscriber: Subscriber | None = None
        self._waiting: list[_OpenRequest] = []
        self._batch: list[_OpenRequest] = []
        self._has_work = asyncio.Event()
        self._turn = asyncio.Lock()  # held while a batch runs, and while the subscriber is replaced

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    @property
    def version(self) -> int:
        return (self._subscriber.version if self._subscriber else 0) or self._version

    # -- life ---------------------------------------------------------------------------------------------------

    def _title(self) -> str:
        return f"the model of {self._name}"

    async def _follow(self, trainer: Trainer) -> None:
        while True:
            link = WorkerLink(trainer.group, trainer.rank, trainer.name)
            subscriber = Subscriber(
                link, self._model, model_id=trainer.name, verify=trainer.verify, ack_timeout=trainer.timeout
            )
            async with subscriber:
                try:
                    await link.opened.async_wait()
                    # Wait for the current batch: it holds the previous subscriber's reading gate, which the new
                    # subscriber does not check before it loads.
                    async with self._turn:
                        self._subscriber = subscriber
                    link.send([messages.JOIN])
                    await subscriber.connect(None)
                    while True:
                        self._note_version(subscriber)
                        await subscriber.receive(None)
                except (PeerLost, ClosedError, DeadlineExceeded) as error:
                    logger.info(
                        "%s samples with version %d until it hears of another: %s", self._name, self.version, error
                    )
                finally:
                    self._note_version(subscriber)

    def _note_version(self, subscriber: Subscriber) -> None:
        if subscriber is self._subscriber and subscriber.version not in (0, self._version):
            self._version, self._updates, self._pause_s = subscriber.version, self._updates + 1, subscriber.pause_s

    async def close(self) -> None:
        for each in self._batch:
            each.is_over = True

    # -- generation ---------------------------------------------------------------------------------------------

    async def generate(
        self, request: Request, prompt: Sequence[int], prefix: Sequence[int] = ()
    ) -> AsyncIterator[Chunk]:
        limit = min(request.max_tokens, self._check(request, prompt))
        if len(prefix) >= limit:
            yield Chunk(len(prefix), [], [], [], finish_reason="length", prompt_tokens=list(prompt))
            return
        with self._progress.of_one() as note:
            mine = _OpenRequest(request, prompt, prefix, limit, self.version, note)
            self._waiting.append(mine)
            self._has_work.set()
            try:
                while True:
                    chunk = await mine.chunks.get()
                    if isinstance(chunk, Exception):
                        raise chunk
                    yield chunk
                    if chunk.finish_reason:
                        return
            finally:
                mine.is_over = True
                with contextlib.suppress(ValueError):
                    self._waiting.remove(mine)

    def _check(self, request: Request, prompt: Sequence[int]) -> int:
        # Return the maximum number of tokens that fit after a prompt.
        for option in request.engine_options:
            if option not in _SAMPLING_OPTIONS:
                raise ValueError(
                    f"engine_options has {option!r}, which EngineGroup('transformers') does not know"
                    f"{did_you_mean(option, _SAMPLING_OPTIONS)}: there are {', '.join(_SAMPLING_OPTIONS)}"
                )
        if wrong := [token for token in prompt if not 0 <= token < self._vocabulary]:
            raise ValueError(f"the prompt has token {wrong[0]}, and the model has tokens 0 to {self._vocabulary - 1}")
        room = request.max_tokens if self._longest is None else self._longest - len(prompt)
        if room < 1:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens, and the model takes {self._longest} with the completion: "
                "shorten it"
            )
        return room

    async def _run(self) -> None:
        while True:
            await self._has_work.wait()
            await self._resumed.wait()
            async with self._turn:
                if self._resumed.is_set():
                    async with self._reading() as version:
                        self._batch = self._next_batch()
                        if self._batch:
                            await self._run_batch(_RequestBatch(self, self._batch, version))

    @contextlib.asynccontextmanager
    async def _reading(self) -> AsyncIterator[int]:
        # Prevent versions from being loaded; the caller must hold ``_turn``.
        async with self._subscriber.reading() if self._subscriber else contextlib.nullcontext(0) as version:
            yield version or self._version  # a new trainer may not have published a version yet

    def _next_batch(self) -> list[_OpenRequest]:
        batch = [each for each in self._waiting if each.same_sampling(self._waiting[0])][: self._batch_size]
        if batch and batch[0].request.seed is not None:
            batch = batch[:1]  # its random numbers would depend on the other requests in the batch
        self._waiting = [each for each in self._waiting if each not in batch]
        if not self._waiting:
            self._has_work.clear()
        return batch

    async def _run_batch(self, batch: _RequestBatch) -> None:
        job = asyncio.get_running_loop().run_in_executor(None, batch.run)
        try:
            await asyncio.wait([job])
        finally:  # on cancellation, the thread ends after its current token
            for each in batch.rows:
                each.is_over = True
            await outlast(asyncio.wait([job]))
        error = job.exception()
        if error is not None:
            for each in batch.rows:
                each.chunks.put_nowait(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            if not isinstance(error, ValueError | TypeError):  # these errors are the request's fault
                raise error

    async def _stop_sampling(self) -> None:
        async with self._turn:
            pass

    async def _start_sampling(self) -> None:
        pass  # the next batch begins once ``_resumed`` is set

    # -- facts --------------------------------------------------------------------------------------------------

    async def checksums(self) -> dict[str, str]:
        async with self._turn, self._reading():
            return await outlast(asyncio.to_thread(self._digests))

    def _digests(self) -> dict[str, str]:
        return {
            name: hashlib.sha256(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy()).hexdigest()
            for name, tensor in self._model.state_dict().items()
        }

    async def stats(self) -> dict[str, float]:
        return {
            "open_requests": float(self._progress.open),
            "version": float(self.version),
            "updates": float(self._updates),
            "load_s": self._pause_s,
            "pause_s": self._pause_s,
        }


class _OpenRequest:
    # An open request with the tokens sampled for it.

    def __init__(
        self,
        request: Request,
        prompt: Sequence[int],
        prefix: Sequence[int],
        limit: int,
        version: int,
        note: Callable[[], None],
    ) -> None:
        self.request, self.prompt, self.limit, self.note = request, list(prompt), limit, note
        self.chunks: asyncio.Queue[Chunk | Exception] = asyncio.Queue()
        self.is_over = False  # set by the loop and by the sampling thread
        self.is_begun = False
        # Version with which the prefix was sampled.
        self.version = version
        self.tokens = list(prefix)
        # Log probabilities of the tokens not yet sent in a chunk.
        self.log_probs: list[float] = []
        # Number of characters of the text already sent in chunks.
        self.written = 0

    def same_sampling(self, other: _OpenRequest) -> bool:
        # True if one call of ``generate`` can sample for both requests.
        names = ("temperature", "top_p", "top_k", "seed", "engine_options")
        return all(getattr(self.request, name) == getattr(other.request, name) for name in names)


class _RequestBatch:
    # Requests sampled together by one call of ``generate``, in a thread, with one version of the weights.

    def __init__(self, engine: TransformersEngine, rows: list[_OpenRequest], version: int) -> None:
        self.rows = rows
        self._model, self._tokenizer, self._ends = engine._model, engine._tokenizer, engine._end_tokens
        self._version = version
        self._call = asyncio.get_running_loop().call_soon_threadsafe
        self._log_probs = torch.empty(0)

    def run(self) -> None:
        # Sample until every request is complete or has been abandoned.
        for row in self.rows:
            if row.version != self._version:  # all tokens must come from one version: start over
                row.tokens = []
            row.written = _settled(self._decode(row.tokens), row.request)
        width = max(len(row.prompt) + len(row.tokens) for row in self.rows)
        pad = next(iter(self._ends), 0)
        ids = torch.full((len(self.rows), width), pad)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(self.rows):
            tokens = torch.tensor(row.prompt + row.tokens)
            ids[index, width - len(tokens) :] = tokens
            mask[index, width - len(tokens) :] = 1
        request = self.rows[0].request
        sampling: dict[str, Any] = {"do_sample": False}
        if request.temperature > 0:
            sampling = {"do_sample": True, "temperature": float(request.temperature), "top_p": float(request.top_p)}
            sampling |= {"top_k": request.top_k, **request.engine_options}
        longest = max(row.limit - len(row.tokens) for row in self.rows)
        with torch.random.fork_rng(enabled=request.seed is not None):
            if request.seed is not None:
                torch.manual_seed(request.seed)
            config: Any = GenerationConfig(max_new_tokens=longest, pad_token_id=pad, **sampling)  # type: ignore[no-untyped-call]
            self._model.generate(
                input_ids=ids.to(self._model.device),
                attention_mask=mask.to(self._model.device),
                generation_config=config,
                logits_processor=LogitsProcessorList([self._note_scores]),
                stopping_criteria=StoppingCriteriaList([self._take]),
            )

    def _note_scores(self, _: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        # transformers calls this processor before the processors for temperature and truncation.
        self._log_probs = scores.float().log_softmax(-1)
        return scores

    def _take(self, ids: torch.Tensor, _: Any, **__: Any) -> torch.Tensor:
        # Record each request's newest token. Return, for each request, whether it is over.
        tokens = ids[:, -1:]
        log_probs = self._log_probs.gather(1, tokens)
        for row, token, log_prob in zip(self.rows, tokens[:, 0].tolist(), log_probs[:, 0].tolist(), strict=True):
            if not row.is_over:
                self._add(row, token, log_prob)
        return torch.tensor([row.is_over for row in self.rows], device=ids.device)

    def _add(self, row: _OpenRequest, token: int, log_prob: float) -> None:
        request = row.request
        row.note()
        row.tokens.append(token)
        row.log_probs.append(log_prob)
        finish: FinishReason | None = None
        text: str | None = None
        if token in request.stop_token_ids or (token in self._ends and not request.ignore_eos):
            finish, text = "stop", self._decode(row.tokens[:-1])
        elif request.stop:
            text = self._decode(row.tokens)
            if found := [text.index(stop) for stop in request.stop if stop in text]:
                finish, text = "stop", text[: min(found)]
        if finish is None and len(row.tokens) >= row.limit:
            finish = "length"
        if finish or len(row.log_probs) >= request.chunk_tokens:
            self._tell(row, self._decode(row.tokens) if text is None else text, finish)

    def _tell(self, row: _OpenRequest, text: str, finish: FinishReason | None) -> None:
        count = len(row.log_probs)
        end = len(text) if finish else _settled(text, row.request)
        chunk = Chunk(
            len(row.tokens) - count,
            row.tokens[-count:],
            row.log_probs,
            [self._version] * count,
            text[row.written : end],
            finish,
            None if row.is_begun else row.prompt,
        )
        row.is_begun, row.is_over = True, finish is not None
        row.log_probs, row.written = [], max(row.written, end)
        self._call(row.chunks.put_nowait, chunk)

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _settled(text: str, request: Request) -> int:
    # Return how many leading characters of a text are final: no later stop text can begin within them.
    held = max((len(stop) for stop in request.stop), default=1) - 1
    return max(0, len(text.rstrip(_UNFINISHED)) - held)
