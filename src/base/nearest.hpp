/// "Did you mean ...?": the known name closest to a mistyped one.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace railyard {

/// How many characters must be put in, taken out, changed or swapped with their neighbour to make `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The name of `known` that is fewest edits away from `name` (the first of equals); empty when nothing is known.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known);

}  // namespace railyard
