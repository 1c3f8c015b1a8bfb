/// A command becomes a call of the window. What makes no sense in a command is an error that says so, like that of a
/// call; and as in a call, a source address is believed.
#pragma once

#include <array>
#include <cstddef>

#include "device/memory.hpp"
#include "railyard/window.hpp"

namespace railyard::device_detail {

/// For messages.
const char* to_string(device::Operation operation);

using Payload = std::array<std::byte, device::detail::kInlineBytes>;

/// Whether the command is one at all; the ranges are the window's to check.
Result<void> check(const Command& command);
/// `payload` takes what travelled inside the command, and stays as it is until the operation is complete.
Result<Ticket> issue(Window& window, const SharedMemory& memory, std::uint32_t ring, const Command& command,
                     Payload& payload);

}  // namespace railyard::device_detail
