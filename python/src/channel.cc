#include "channel.hpp"

#include <pybind11/stl.h>

#include <cstring>
#include <thread>

#include "errors.hpp"
#include "world.hpp"

namespace railyard::python {
namespace {

using Clock = std::chrono::steady_clock;

/// Calls `attempt`, without Python's lock, until it has an answer. The library's threads move things on meanwhile.
template <typename Attempt>
bool poll(Timeout timeout, std::uint32_t default_ms, Attempt&& attempt) {
  const std::int64_t patience = timeout.nanoseconds(default_ms);
  const auto began = Clock::now();
  constexpr auto kSignalsEvery = std::chrono::milliseconds(100);
  for (;;) {
    const bool done = without_gil([&] {
      const auto turn = Clock::now();
      auto nap = std::chrono::microseconds(0);
      for (;;) {
        if (attempt()) return true;
        const auto now = Clock::now();
        if (now - began >= std::chrono::nanoseconds(patience) || now - turn >= kSignalsEvery) return false;
        std::this_thread::sleep_for(nap);
        nap = std::min(nap + std::chrono::microseconds(5), std::chrono::microseconds(500));
      }
    });
    if (done) return true;
    check_signals();
    if (Clock::now() - began >= std::chrono::nanoseconds(patience)) return false;
  }
}

[[noreturn]] void raise_timeout(const std::string& message, const char* call) {
  raise(Error(Status::timeout, message, {.operation = call}));
}

}  // namespace

// ---- Context ----

PyContext::PyContext(py::handle given) : Closable("Context") {
  const Settings settings = settings_from(given);
  context_ = take(without_gil([&] { return Context::open(settings); }));
}

void PyContext::add(const std::shared_ptr<Closable>& user) {
  std::erase_if(users_, [](const auto& one) { return one.expired(); });
  users_.push_back(user);
}

void PyContext::close() {
  if (closed() || inherited()) return;
  for (const auto& one : users_) {
    const auto user = one.lock();
    if (user != nullptr && user->in_use()) raise_busy("Context.close: another thread is in a call of a channel");
  }
  if (!begin_close()) return;
  for (const auto& one : users_) {
    const auto user = one.lock();
    if (auto* const channel = dynamic_cast<PyChannel*>(user.get())) channel->close();
    if (auto* const listener = dynamic_cast<PyListener*>(user.get())) listener->close();
  }
  end(*this, context_);
  end_close(true);
}

// ---- Channel ----

std::unique_lock<std::mutex> PyChannel::take_turn() {
  waiting_.fetch_add(1, std::memory_order_relaxed);
  std::unique_lock guard(mutex_);
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  return guard;
}

void PyChannel::let_others_in() const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
  while (waiting_.load(std::memory_order_relaxed) > 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::microseconds(5));
}

template <typename Use>
auto PyChannel::alone(Use&& use) {
  const GilRelease release;
  const auto turn = take_turn();
  return use();
}

template <typename Begin>
void PyChannel::begin(const std::shared_ptr<Transfer>& transfer, Timeout timeout, Begin&& begin) {
  Error error;
  const bool begun = poll(timeout, timeout_ms(), [&] {
    const auto turn = take_turn();
    auto request = begin();
    if (!request) {
      error = std::move(request.error());
    } else {
      transfer->request = *request;
    }
    return !request.ok() || *request != nullptr;
  });
  if (error.status() != Status::ok) raise(error);
  if (!begun) raise_timeout("no request was free: test or wait for those under way", "send");
  transfers_.push_back(transfer);
  if (transfers_.size() > Channel::kMostRequests) sweep();
}

std::shared_ptr<Transfer> PyChannel::send(py::handle message, int tag, const PyMemory* registered, Timeout timeout) {
  const Call call(*this, "isend");
  auto transfer = std::make_shared<Transfer>();
  transfer->count = 1;
  transfer->buffers.emplace_back(message, Access::read);
  if (registered != nullptr) registered->check("isend");
  begin(transfer, timeout, [&] {
    return channel_->send(transfer->buffers[0].bytes(), tag, registered != nullptr ? registered->memory() : nullptr);
  });
  return transfer;
}

std::shared_ptr<Transfer> PyChannel::receive(const std::vector<py::object>& destinations, const std::vector<int>& tags,
                                             const PyMemory* registered, Timeout timeout) {
  const Call call(*this, "irecv");
  if (tags.size() != destinations.size()) throw py::value_error("as many tags as destinations are needed");
  auto transfer = std::make_shared<Transfer>();
  transfer->count = std::min(destinations.size(), Channel::kMostSlots);
  if (registered != nullptr) registered->check("irecv");
  std::vector<ReceiveSlot> slots;
  for (const py::object& one : destinations) transfer->buffers.emplace_back(one, Access::write);
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    slots.push_back({transfer->buffers[i].bytes(), tags[i], registered != nullptr ? registered->memory() : nullptr});
  }
  begin(transfer, timeout, [&] { return channel_->receive(slots); });
  return transfer;
}

bool PyChannel::test(Transfer& transfer) {
  if (transfer.request == nullptr) return true;
  const Call call(*this, "test");
  const auto done = alone([&]() -> Result<bool> {
    if (transfer.request == nullptr) return true;  // another thread was first
    auto tested = channel_->test(transfer.request, std::span(transfer.sizes).first(transfer.count));
    if (tested.ok() && *tested) transfer.request = nullptr;
    return tested;
  });
  if (!done) raise(done.error());
  if (*done) transfer.buffers.clear();
  return *done;
}

void PyChannel::wait(Transfer& transfer, Timeout timeout) {
  if (transfer.request == nullptr) return;
  const Call call(*this, "wait");
  const std::int64_t patience = timeout.nanoseconds(timeout_ms());
  const auto began = Clock::now();
  // In parts, so that other threads get their turn in the channel, and Ctrl-C is heard.
  std::int64_t part = 1'000'000;
  for (;;) {
    const std::int64_t passed = std::chrono::nanoseconds(Clock::now() - began).count();
    const std::int64_t left =
        patience == Timeout::kNever ? Timeout::kNever : std::max<std::int64_t>(0, patience - passed);
    auto done = alone([&]() -> Result<void> {
      if (transfer.request == nullptr) return {};
      auto waited = channel_->wait(transfer.request, std::span(transfer.sizes).first(transfer.count),
                                   Timeout::of(std::min(part, left)));
      if (waited.ok()) transfer.request = nullptr;
      return waited;
    });
    if (done.ok()) break;
    if (done.status() != Status::timeout) raise(done.error());
    if (left <= part) {
      raise_timeout("not done after " + std::to_string(static_cast<double>(patience) * 1e-9) + " s", "wait");
    }
    check_signals();
    without_gil([&] { let_others_in(); });
    part = std::min<std::int64_t>(part * 2, 20'000'000);
  }
  transfer.buffers.clear();
}

void PyChannel::sweep() {
  std::vector<std::shared_ptr<Transfer>> all;
  all.swap(transfers_);
  for (const auto& one : all) {
    bool over = one->request == nullptr;
    // Only those that nobody else holds: the others are tested by their owners.
    if (!over && one.use_count() == 1 && !one->failed) {
      try {
        over = test(*one);
      } catch (py::error_already_set&) {
        one->failed = true;  // its memory is held until the channel ends
      }
    }
    if (!over) transfers_.push_back(one);
  }
}

void PyChannel::close() {
  if (begin_close()) take_down();
}

void PyChannel::take_down() noexcept {
  for (const auto& one : memories_) {
    if (const auto memory = one.lock()) memory->take_down();
  }
  memories_.clear();
  end(*this, channel_);
  end_close(true);
  for (const auto& one : transfers_) {
    // Nobody touches the memory now.
    one->buffers.clear();
    one->failed = one->request != nullptr;
  }
  transfers_.clear();
}

// ---- Python's names ----

namespace {

py::dict to_dict(const ChannelStatistics& from) {
  py::dict all;
  all["peer"] = from.peer;
  all["route"] = from.route;
  all["sharers"] = from.sharers;
  all["shares"] = from.shares;
  all["messages_sent"] = from.messages_sent;
  all["messages_received"] = from.messages_received;
  all["bytes_sent"] = from.bytes_sent;
  all["bytes_received"] = from.bytes_received;
  all["eager_sent"] = from.eager_sent;
  all["unexpected"] = from.unexpected;
  return all;
}

py::dict to_dict(const ContextStatistics& from) {
  py::dict all;
  all["channels"] = from.channels;
  all["routes"] = from.routes;
  all["private_routes"] = from.private_routes;
  all["channels_opened"] = from.channels_opened;
  all["routes_opened"] = from.routes_opened;
  all["joins_refused"] = from.joins_refused;
  py::list engines;
  for (const WorldStatistics& engine : from.engines) engines.append(python::to_dict(engine));
  all["engines"] = std::move(engines);
  return all;
}

py::object sizes_of(const Transfer& transfer) {
  py::list sizes;
  for (std::size_t i = 0; i < transfer.count; ++i) sizes.append(transfer.sizes[i]);
  return sizes;
}

std::shared_ptr<PyChannel> hand_out(const std::shared_ptr<PyContext>& context, std::unique_ptr<Channel> channel) {
  auto made = std::make_shared<PyChannel>(context, std::move(channel));
  context->add(made);
  return made;
}

py::object accept(PyListener& self, py::handle timeout) {
  const Timeout limit(timeout);
  const Call call(self, "accept");
  const Call inside(*self.context(), "accept");
  Result<std::unique_ptr<Channel>> channel = std::unique_ptr<Channel>();
  poll(limit, self.context()->timeout_ms(), [&] {
    channel = self.listener().accept();
    return !channel.ok() || *channel != nullptr;
  });
  auto accepted = take(std::move(channel));
  if (accepted == nullptr) raise_timeout("accept: nobody has connected", "accept");
  return py::cast(hand_out(self.context(), std::move(accepted)));
}

py::object connect(const std::shared_ptr<PyContext>& self, const py::bytes& given, std::uint32_t service_class,
                   py::handle timeout) {
  const Timeout limit(timeout);
  const Call call(*self, "connect");
  Handle handle;
  const auto text = static_cast<std::string>(given);
  if (text.size() != Handle::kBytes) throw py::value_error("a handle has " + std::to_string(Handle::kBytes) + " bytes");
  std::memcpy(handle.bytes.data(), text.data(), text.size());
  Result<std::unique_ptr<Channel>> channel = std::unique_ptr<Channel>();
  try {
    poll(limit, self->timeout_ms(), [&] {
      channel = self->context().connect(handle, {.service_class = service_class});
      return !channel.ok() || *channel != nullptr;
    });
  } catch (...) {
    self->context().abandon(handle);
    throw;
  }
  auto connected = take(std::move(channel));
  if (connected == nullptr) {
    self->context().abandon(handle);
    raise_timeout("connect: the listener has not answered", "connect");
  }
  return py::cast(hand_out(self, std::move(connected)));
}

void bind_context(py::module_& module) {
  py::class_<PyContext, std::shared_ptr<PyContext>>(
      module, "Context", "Where the channels of a process begin and end. Needs no world, ranks or launcher.")
      .def(py::init<py::handle>(), py::arg("settings") = py::none(),
           "Opens rails as the settings say: None (the environment), Settings, or a mapping of RAILYARD_* variables.")
      .def(
          "listen",
          [](const std::shared_ptr<PyContext>& self) {
            const Call call(*self, "listen");
            auto made = std::make_shared<PyListener>(self, take(without_gil([&] { return self->context().listen(); })));
            self->add(made);
            return made;
          },
          "Opens a listener, which others connect to with its handle.")
      .def("connect", &connect, py::arg("handle"), py::arg("service_class") = 0, py::arg("timeout") = py::none(),
           "Connects to the listener that `handle` (bytes) names. Channels of different classes share no link.")
      .def(
          "statistics",
          [](PyContext& self) {
            const Call call(self, "statistics");
            return to_dict(without_gil([&] { return self.context().statistics(); }));
          },
          "What the context counted since it opened, as a dict.")
      .def(
          "report",
          [](PyContext& self) {
            const Call call(self, "report");
            return without_gil([&] { return self.context().report(); });
          },
          "Which channels share which links now: a few lines for a person.")
      .def("close", &PyContext::close, "Closes its channels and listeners, then the rails.")
      .def_property_readonly("closed", &PyContext::closed, "Whether `close` was called.")
      .def("_close_if_idle",
           [](PyContext& self) {
             try {
               self.close();
             } catch (py::error_already_set&) {
               // A thread is still inside: the process ends around it.
             }
           })
      .def("__enter__", [](std::shared_ptr<PyContext> self) { return self; })
      .def("__exit__", [](PyContext& self, const py::args&) { self.close(); });

  py::class_<PyListener, std::shared_ptr<PyListener>>(module, "Listener", "What others connect to, by its handle.")
      .def_property_readonly(
          "handle",
          [](PyListener& self) {
            const Call call(self, "handle");
            const Handle& handle = self.listener().handle();
            return py::bytes(reinterpret_cast<const char*>(handle.bytes.data()), handle.bytes.size());
          },
          "128 bytes that name this listener, to be carried to whoever connects. A secret of the job.")
      .def("accept", &accept, py::arg("timeout") = py::none(), "Waits for the next channel; 0: only looks.")
      .def("close", &PyListener::close, "Ends it. Channels that were accepted go on.")
      .def_property_readonly("closed", &PyListener::closed, "Whether `close` was called.")
      .def("__enter__", [](std::shared_ptr<PyListener> self) { return self; })
      .def("__exit__", [](PyListener& self, const py::args&) { self.close(); });
}

}  // namespace

void bind_channel(py::module_& module) {
  bind_context(module);
  py::enum_<MemoryUse>(module, "MemoryUse", "What registered memory is for: messages both ways, or sends alone.")
      .value("any", MemoryUse::any)
      .value("sends", MemoryUse::sends);
  py::class_<PyMemory, std::shared_ptr<PyMemory>>(module, "RegisteredMemory",
                                                  "Memory that is registered for the messages of one channel.")
      .def("close", &PyMemory::close, "Deregisters it. Messages of it that are under way end the channel.")
      .def_property_readonly("closed", &PyMemory::closed, "Whether `close` was called.")
      .def("__enter__", [](std::shared_ptr<PyMemory> self) { return self; })
      .def("__exit__", [](PyMemory& self, const py::args&) { self.close(); });
  py::class_<PyRequest>(module, "Request", "A send or a receive under way. Keeps its channel and its memory.")
      .def(
          "test", [](PyRequest& self) { return self.channel->test(*self.transfer); },
          "Whether it is done; moves things on if not.")
      .def(
          "wait",
          [](PyRequest& self, py::handle timeout) {
            self.channel->wait(*self.transfer, Timeout(timeout));
            return sizes_of(*self.transfer);
          },
          py::arg("timeout") = py::none(), "Waits until it is done; returns the bytes of each message.")
      .def_property_readonly(
          "sizes", [](const PyRequest& self) { return sizes_of(*self.transfer); },
          "The bytes of each message, once it is done.")
      .def_property_readonly(
          "channel", [](const PyRequest& self) { return self.channel; }, "The channel it belongs to.");
  py::class_<PyChannel, std::shared_ptr<PyChannel>>(
      module, "Channel", "A first-in-first-out message stream between two processes. Any number of threads may use it.")
      .def(
          "isend",
          [](const std::shared_ptr<PyChannel>& self, py::handle message, int tag, const PyMemory* registered,
             py::handle timeout) {
            return PyRequest{self, self->send(message, tag, registered, Timeout(timeout))};
          },
          py::arg("message"), py::arg("tag") = 0, py::arg("registered") = nullptr, py::arg("timeout") = py::none(),
          "Begins to send a message; it is kept, and must not change, until the request is done.")
      .def(
          "irecv",
          [](const std::shared_ptr<PyChannel>& self, py::handle destination, int tag, const PyMemory* registered,
             py::handle timeout) {
            const std::vector<py::object> one{py::reinterpret_borrow<py::object>(destination)};
            return PyRequest{self, self->receive(one, {tag}, registered, Timeout(timeout))};
          },
          py::arg("destination"), py::arg("tag") = 0, py::arg("registered") = nullptr, py::arg("timeout") = py::none(),
          "Begins to receive a message of that tag.")
      .def(
          "irecv_group",
          [](const std::shared_ptr<PyChannel>& self, const std::vector<py::object>& destinations,
             const std::vector<int>& tags, py::handle timeout) {
            return PyRequest{self, self->receive(destinations, tags, nullptr, Timeout(timeout))};
          },
          py::arg("destinations"), py::arg("tags"), py::arg("timeout") = py::none(),
          "Begins to receive 1 to 8 messages, one for each destination and tag.")
      .def(
          "register",
          [](const std::shared_ptr<PyChannel>& self, py::handle given, MemoryUse use) {
            const Call call(*self, "register");
            Buffer buffer(given, use == MemoryUse::sends ? Access::read : Access::write);
            auto memory = take(without_gil([&] { return self->channel().register_memory(buffer.bytes(), {}, use); }));
            auto made = std::make_shared<PyMemory>(self, std::move(buffer), std::move(memory));
            self->add(made);
            return made;
          },
          py::arg("memory"), py::arg("use") = MemoryUse::any,
          "Registers memory for messages of this channel, and keeps it until it is closed. With MemoryUse.sends no "
          "peer gets the right to read or write it, and read-only memory will do.")
      .def(
          "statistics",
          [](PyChannel& self) {
            const Call call(self, "statistics");
            return to_dict(without_gil([&] { return self.channel().statistics(); }));
          },
          "What can be seen of the channel, as a dict.")
      .def("close", &PyChannel::close,
           "Gives up what is under way; returns when nobody can touch its memory. Sends that are done are delivered.")
      .def_property_readonly("closed", &PyChannel::closed, "Whether the channel is closed.")
      .def("__enter__", [](std::shared_ptr<PyChannel> self) { return self; })
      .def("__exit__", [](PyChannel& self, const py::args&) { self.close(); });
}

}  // namespace railyard::python
