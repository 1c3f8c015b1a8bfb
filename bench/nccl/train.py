#!/usr/bin/env python3
"""A small model trained by two ranks, once undisturbed and once with a rail cut in the middle: the same losses, bit by bit.

Both runs go over four libfabric tcp rails on loopback. At --cut-at, with a gradient under way, rank 0 shuts down every
connection of its busiest rail, and every connection that rail makes again until the end. Ends with 0 if the losses and the final
parameters are identical, no rank saw an error, connections were really cut, and Railyard said that it lost a link.
"""
import argparse
import hashlib
import re
import sys
import time

sys.dont_write_bytecode = True
import drawing  # noqa: E402
import ranks  # noqa: E402
import tables  # noqa: E402

WIDTH, LAYERS, BATCH = 1024, 6, 64
CUT_AFTER_S = 0.004  # so long after a gradient set out: it is half way
LOST_LINK = re.compile(r"link to .* is down.*")
NEWS = re.compile(r"link to .* is (down|back)")
COMPLAINT = re.compile(r"NCCL WARN|NCCL ERROR|ncclSystemError|ncclRemoteError|ncclInternalError|Traceback")
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def build(seed):
    import torch
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    layers = []
    for _ in range(LAYERS):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1)).to(ranks.device())


def fingerprint(model):
    parts = hashlib.sha256()
    for parameter in model.parameters():
        parts.update(parameter.detach().cpu().numpy().tobytes())
    return parts.hexdigest()


def average_gradients(model, cut):
    """`cut` is called with the sum under way."""
    import torch
    import torch.distributed as dist
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    sum_under_way = dist.all_reduce(flat, async_op=True)
    if cut:
        time.sleep(CUT_AFTER_S)
        cut()
    sum_under_way.wait()
    flat /= dist.get_world_size()
    parameters = list(model.parameters())
    for parameter, part in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
        parameter.grad.copy_(part.view_as(parameter.grad))


def work(steps, cut_at):
    import torch
    import torch.distributed as dist
    rank = dist.get_rank()
    model = build(seed=1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    examples = torch.Generator().manual_seed(100 + rank)
    direction = torch.randn(WIDTH, 1, generator=torch.Generator().manual_seed(7)).to(ranks.device()) / WIDTH ** 0.5
    rail, losses, times = None, [], []
    for step in range(steps):
        inputs = torch.randn(BATCH, WIDTH, generator=examples).to(ranks.device())
        ranks.synchronize()
        begin = time.perf_counter()
        loss = torch.nn.functional.mse_loss(model(inputs), torch.sin(inputs @ direction))
        optimiser.zero_grad()
        loss.backward()
        if step == cut_at and rank == 0:
            import cut
            rail = cut.Rail()
        average_gradients(model, rail.cut if rail and step == cut_at else None)
        optimiser.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append((mean.item() / 2).hex())
        times.append((time.perf_counter() - begin) * 1e3)
    if rail:
        rail.release()
    return {"losses": losses, "times_ms": times, "parameters": fingerprint(model), "cut": rail.report() if rail else None}


def complaints(logs):
    """Lines in which NCCL or torch complain. What Railyard says of a lost link is news."""
    return [line for text in logs for line in text.splitlines() if COMPLAINT.search(line) and not NEWS.search(line)]


def judge(calm, cut, disturbed):
    """What is not as it must be."""
    first, second = calm.results, cut.results
    problems = [f"rank {rank}: step {step} differs: {one} and {other}"
                for rank in range(2) for step, (one, other) in enumerate(zip(first[rank]["losses"], second[rank]["losses"]))
                if one != other][:3]
    problems += [f"rank {rank}: the parameters differ at the end" for rank in range(2)
                 if first[rank]["parameters"] != second[rank]["parameters"]]
    problems += [f"a complaint: {line}" for line in complaints(calm.logs + cut.logs)[:5]]
    if not disturbed:
        return problems
    if not second[0]["cut"] or not second[0]["cut"]["connections_cut"]:
        problems.append("nothing was cut")
    if not any(LOST_LINK.search(text) for text in cut.logs):
        problems.append("Railyard did not say that it lost a link")
    return problems


def picture(calm, cut, cut_at):
    runs = (("undisturbed", calm, "#9ac1ff", 6), ("a rail cut", cut, "#111", 1.5))

    def lines(values):  # the first step sets things up: its time would flatten all others
        return [(list(enumerate(values(outcome.results[0])))[1:], colour, width) for _, outcome, colour, width in runs]

    panels = (("loss", lambda result: [float.fromhex(loss) for loss in result["losses"]], lambda mark: f"{mark:g}"),
              ("time of a step", lambda result: result["times_ms"], lambda mark: tables.time_text(mark * 1e3)))
    parts = []
    for number, (title, values, label) in enumerate(panels):
        top = 30 + 260 * number
        drawn, across = drawing.panel(title, lines(values), top, 260, 0, 10, lambda mark: f"{mark:g}", label)
        parts += drawn
        if cut_at is not None:
            parts.append(drawing.upright(across.place(cut_at), top, 260, "one of four rails cut"))
    return drawing.page("Two ranks train over four rails", 550, parts, [(name, colour) for name, _, colour, _ in runs])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ranks.add_arguments(parser, limit=180)
    parser.add_argument("--steps", type=int, default=300, help="(%(default)s)")
    parser.add_argument("--cut-at", type=int, default=120, help="step (%(default)s)")
    parser.add_argument("--svg", metavar="FILE", help="draw losses and step times there")
    args = ranks.parse(parser)
    disturbed = not (args.socket or args.cpu)
    if args.debug == "WARN":
        args.debug = "INFO"  # Railyard's news are NCCL's information
    transport = ranks.chosen(args, **ranks.TCP_RAILS)
    with ranks.service(args) as environment:
        environment = {**environment, **DETERMINISTIC}
        calm = ranks.run_with(args, environment, work, transport, (args.steps, None))
        cut = ranks.run_with(args, environment, work, transport, (args.steps, args.cut_at if disturbed else None))
    if args.json:
        tables.write_json(args.json, {"calm": calm.results, "cut": cut.results, "logs": {"calm": calm.logs, "cut": cut.logs}})
    if args.svg:
        drawing.save(args.svg, picture(calm, cut, args.cut_at if disturbed else None))
    losses = [float.fromhex(loss) for loss in calm.results[0]["losses"]]
    print(f"{args.steps} steps, loss {losses[0]:.5f} to {losses[-1]:.5f}; cut: {cut.results[0]['cut']}")
    for result, name in ((calm.results[0], "undisturbed"), (cut.results[0], "a rail cut")):
        times = sorted(result["times_ms"][1:])
        print(f"{name}: median step {times[len(times) // 2]:.2f} ms, longest {times[-1]:.2f} ms")
    for rank, text in enumerate(cut.logs):
        for line in LOST_LINK.findall(text)[:3]:
            print(f"rank {rank} said: {line}")
    problems = judge(calm, cut, disturbed)
    print("\n".join(problems) if problems else "losses and parameters are identical, bit by bit; nobody complained")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
