"""One federated continual learning run, over any transport."""

from contextlib import ExitStack

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import config_error
from fcl_flower.core.types import Arrays
from fcl_flower.rounds.async_loop import AsyncLoop
from fcl_flower.rounds.loop import EvaluateFn, LoopResult
from fcl_flower.rounds.prepare import prepare
from fcl_flower.rounds.sync_loop import SyncLoop
from fcl_flower.rounds.transport import Transport


def run_federation(
    config: RunConfig,
    transport: Transport,
    initial_model: Arrays | None = None,
    num_rounds: int | None = None,
    timeout: float | None = None,
    evaluate_fn: EvaluateFn | None = None,
) -> LoopResult:
    """Run the whole federation and write its run folder and report.

    Args:
        config: of the run.
        transport: reaches the clients.
        initial_model: the model's shared tensors by name; None or empty for those that
            the run's seed draws. A resumed run continues from its checkpoint.
        num_rounds: of the whole run, of each client where it is asynchronous: a
            multiple of the number of tasks. None for what is configured.
        timeout: seconds to wait for clients and for their replies; None for what is
            configured.
        evaluate_fn: called with the round and the global model before the first round
            and after each; refused where there is no global model.

    Returns:
        The final global model, where there is one, and by round the means of the
        clients' losses and test accuracies. A resumed run has only its own rounds.

    Raises:
        ConfigError: an argument or a setting is refused.
        RoundError: too few usable replies, no client was evaluated, or all have lost
            their state again and again.
    """
    if num_rounds is not None and num_rounds < 1:
        raise config_error("num_rounds", num_rounds, "at least 1")
    seconds = config.federation.timeout if timeout is None else timeout
    if not seconds > 0:
        raise config_error("timeout", timeout, "a number of seconds above 0")
    loop = AsyncLoop if config.asynchronous.enabled else SyncLoop
    with ExitStack() as stack:
        run = prepare(config, transport, initial_model, num_rounds, seconds, stack)
        result = loop(run, evaluate_fn).run()
        run.server.finish()
        private = run.ledger is not None
        stopped = private and run.server.done < run.schedule.num_rounds
        if config.privacy.scores and not stopped:
            run.server.check_evaluated()
        run.server.check_kept()
    return result
