"""Methods x prompts, interleaved in one process: tokens/s, speed-ups with intervals, acceptance, stage times."""
