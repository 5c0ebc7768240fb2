"""llama.cpp's own HTTP server with the small model of the tests, at a port of loopback that it writes down."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import xllamacpp

from cantata_workers.models.local.model_server import weights

params = xllamacpp.CommonParams()
params.model.path = str(weights())
params.n_ctx, params.n_parallel = 4096, 2
params.use_jinja = True
params.fit_params = params.warmup = False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
params.verbosity = 1  # errors
server = xllamacpp.Server(params)
file = Path(sys.argv[1])
draft = file.with_suffix(".draft")
draft.write_text(server.listening_address)
draft.replace(file)
threading.Event().wait()
