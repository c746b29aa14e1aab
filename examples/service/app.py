"""A web service whose answers say how sure they are: POCKETBAYES_NET=model.pocket uvicorn app:app."""

import asyncio
import math
import os
import tempfile
from typing import Annotated

import torch
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

import pocketbayes as pb
from pocketbayes.base.errors import collecting_warnings
from pocketbayes.network import members

MOST_BYTES, MOST_INPUTS, MOST_SAMPLES = {"/predict": 1 << 20, "/photo": 8 << 20}, 64, 100
net = pb.load(os.environ["POCKETBAYES_NET"])
info = members(net)[0].info
if info is None or info.task != "classification":
    raise SystemExit("this service is for classifiers that know their data, such as those that pocketbayes train makes")
size = math.prod(info.input_shape)
names = info.class_names or [str(label) for label in range(info.classes)]
Row = Annotated[list[float], Field(min_length=size, max_length=size)]
Answer = dict[str, str | float | list[str]]
app = FastAPI(title="pocketbayes")
decoding = asyncio.Semaphore(2)  # a photo of 8 MB may have 67 million pixels


class Question(BaseModel):
    """Inputs, flat, as before normalisation: pixels from 0 to 1, tables in their own units."""

    x: Annotated[list[Row], Field(min_length=1, max_length=MOST_INPUTS)]
    samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = 30
    adaptive: bool = False


@app.middleware("http")
async def bounded(request: Request, call_next) -> Response:
    """Refuses a body before reading it: its size must be given, and be small."""
    length, most = request.headers.get("content-length", ""), MOST_BYTES.get(request.url.path, 0)
    if "transfer-encoding" in request.headers:  # then the length that is given does not count
        length = ""
    if request.method == "POST" and not (length.isdecimal() and int(length) <= most):
        return Response(f"at most {most} bytes, and their number in advance", 413 if length else 411)
    return await call_next(request)


@app.exception_handler(RequestValidationError)
async def refuse(request: Request, error: RequestValidationError) -> Response:
    """Say what is wrong with a question, without repeating it: its bytes may be no text."""
    problems = [{"where": list(map(str, one["loc"])), "what": one["msg"]} for one in error.errors()]
    return JSONResponse({"detail": problems[:10]}, 422)


@app.post("/predict")
def predict(question: Question) -> list[Answer]:
    """For each input its class, the probability, and where the doubt comes from, in nats."""
    x = pb.data.scale_inputs(torch.tensor(question.x).reshape(-1, *info.input_shape), info)
    if not x.isfinite().all():
        raise HTTPException(422, "x holds numbers that are not finite")
    return answer(x, question.samples, question.adaptive)


@app.post("/photo")
async def photo(request: Request, samples: Annotated[int, Query(ge=1, le=MOST_SAMPLES)] = 30) -> Answer:
    """Answer for the image file in the body, which is scaled and cropped as in training."""
    with tempfile.NamedTemporaryFile(suffix=".png") as file:  # the bytes decide the format, not the name
        file.write(await request.body())
        file.flush()
        try:
            async with decoding:
                with collecting_warnings() as problems:
                    x = await run_in_threadpool(pb.data.read_inputs, file.name, info)
        except pb.UserError as error:
            raise HTTPException(422, str(error).replace(file.name, "the photo")) from None
    found = (await run_in_threadpool(answer, x, samples))[0]
    found["warnings"] += [message.replace(file.name, "the photo") for message in problems]
    return found


def answer(x: torch.Tensor, samples: int, adaptive: bool = False) -> list[Answer]:
    """Predict, and write each answer as plain values."""
    try:
        with collecting_warnings() as problems:
            found = pb.predict(net, x, samples=samples, adaptive=adaptive or None)
    except pb.UserError as error:
        raise HTTPException(422, str(error)) from None
    doubts = ("entropy", "epistemic", "aleatoric", *(("passes",) if adaptive else ()))
    return [
        {
            "class": names[p.argmax()],
            "probability": float(p.max()),
            **{doubt: float(getattr(found, doubt)[i]) for doubt in doubts},
            "warnings": list(problems),
        }
        for i, p in enumerate(found.mean)
    ]
