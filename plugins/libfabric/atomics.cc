#include "atomics.hpp"

#include <complex>
#include <cstring>
#include <type_traits>

#include "domain.hpp"

namespace railyard::provider {

namespace {

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 Uint128;

template <typename T>
inline constexpr bool kIsComplex = false;
template <typename T>
inline constexpr bool kIsComplex<std::complex<T>> = true;
template <typename T>
inline constexpr bool kIsWhole = std::is_integral_v<T> || std::is_same_v<T, Int128> || std::is_same_v<T, Uint128>;

/// How the new value follows from the old one and the operand. `offered`: for which types.
struct Minimum {
  template <typename T>
  static constexpr bool offered = !kIsComplex<T>;
  template <typename T>
  static T apply(T old, T operand) {
    return operand < old ? operand : old;
  }
};
struct Maximum {
  template <typename T>
  static constexpr bool offered = !kIsComplex<T>;
  template <typename T>
  static T apply(T old, T operand) {
    return old < operand ? operand : old;
  }
};
struct Sum {
  template <typename T>
  static constexpr bool offered = true;
  template <typename T>
  static T apply(T old, T operand) {
    return static_cast<T>(old + operand);
  }
};
struct Product {
  template <typename T>
  static constexpr bool offered = true;
  template <typename T>
  static T apply(T old, T operand) {
    return static_cast<T>(old * operand);
  }
};
struct LogicalOr {
  template <typename T>
  static constexpr bool offered = true;
  template <typename T>
  static T apply(T old, T operand) {
    return static_cast<T>(old != T{} || operand != T{});
  }
};
struct LogicalAnd {
  template <typename T>
  static constexpr bool offered = true;
  template <typename T>
  static T apply(T old, T operand) {
    return static_cast<T>(old != T{} && operand != T{});
  }
};
struct LogicalExclusive {
  template <typename T>
  static constexpr bool offered = true;
  template <typename T>
  static T apply(T old, T operand) {
    return static_cast<T>((old != T{}) != (operand != T{}));
  }
};
struct BitOr {
  template <typename T>
  static constexpr bool offered = kIsWhole<T>;
  template <typename T>
  static T apply(T old, T operand) {
    return static_cast<T>(old | operand);
  }
};
struct BitAnd {
  template <typename T>
  static constexpr bool offered = kIsWhole<T>;
  template <typename T>
  static T apply(T old, T operand) {
    return static_cast<T>(old & operand);
  }
};
struct BitExclusive {
  template <typename T>
  static constexpr bool offered = kIsWhole<T>;
  template <typename T>
  static T apply(T old, T operand) {
    return static_cast<T>(old ^ operand);
  }
};
struct Replace {
  template <typename T>
  static constexpr bool offered = true;
  template <typename T>
  static T apply(T, T operand) {
    return operand;
  }
};

/// When a compare-and-swap stores: `compare` against what is there.
struct Equal {
  template <typename T>
  static constexpr bool offered = true;
  template <typename T>
  static bool holds(T compare, T old) {
    return compare == old;
  }
};
struct NotEqual {
  template <typename T>
  static constexpr bool offered = true;
  template <typename T>
  static bool holds(T compare, T old) {
    return compare != old;
  }
};
template <bool Less, bool OrEqual>
struct Ordered {
  template <typename T>
  static constexpr bool offered = !kIsComplex<T>;
  template <typename T>
  static bool holds(T compare, T old) {
    return (Less ? compare < old : old < compare) || (OrEqual && compare == old);
  }
};

template <typename T>
T load(const std::byte* from, std::size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void store(std::byte* to, std::size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

template <typename T, typename Operation>
void update(std::byte* target, const std::byte* operands, const std::byte*, std::byte* result, std::size_t elements) {
  for (std::size_t index = 0; index < elements; ++index) {
    const T old = load<T>(target, index);
    store<T>(result, index, old);
    store<T>(target, index, Operation::apply(old, load<T>(operands, index)));
  }
}
template <typename T>
void only_read(std::byte* target, const std::byte*, const std::byte*, std::byte* result, std::size_t elements) {
  std::memcpy(result, target, elements * sizeof(T));
}
template <typename T, typename Condition>
void swap_if(std::byte* target, const std::byte* operands, const std::byte* compares, std::byte* result,
             std::size_t elements) {
  for (std::size_t index = 0; index < elements; ++index) {
    const T old = load<T>(target, index);
    const T operand = load<T>(operands, index);
    store<T>(result, index, old);
    if (Condition::template holds<T>(load<T>(compares, index), old)) store<T>(target, index, operand);
  }
}
/// Bits of the operand where the comparand has ones.
template <typename T>
void masked_swap(std::byte* target, const std::byte* operands, const std::byte* compares, std::byte* result,
                 std::size_t elements) {
  for (std::size_t index = 0; index < elements; ++index) {
    const T old = load<T>(target, index);
    const T mask = load<T>(compares, index);
    const T operand = load<T>(operands, index);
    store<T>(result, index, old);
    store<T>(target, index, static_cast<T>((operand & mask) | (old & static_cast<T>(~mask))));
  }
}

template <typename T, typename Operation>
constexpr AtomicFunction if_offered_update() {
  if constexpr (Operation::template offered<T>) {
    return update<T, Operation>;
  } else {
    return nullptr;
  }
}
template <typename T, typename Condition>
constexpr AtomicFunction if_offered_swap() {
  if constexpr (Condition::template offered<T>) {
    return swap_if<T, Condition>;
  } else {
    return nullptr;
  }
}

template <typename T>
AtomicFunction find_update(AtomicKind kind, fi_op operation) {
  switch (operation) {
    case FI_MIN:
      return if_offered_update<T, Minimum>();
    case FI_MAX:
      return if_offered_update<T, Maximum>();
    case FI_SUM:
      return if_offered_update<T, Sum>();
    case FI_PROD:
      return if_offered_update<T, Product>();
    case FI_LOR:
      return if_offered_update<T, LogicalOr>();
    case FI_LAND:
      return if_offered_update<T, LogicalAnd>();
    case FI_BOR:
      return if_offered_update<T, BitOr>();
    case FI_BAND:
      return if_offered_update<T, BitAnd>();
    case FI_LXOR:
      return if_offered_update<T, LogicalExclusive>();
    case FI_BXOR:
      return if_offered_update<T, BitExclusive>();
    case FI_ATOMIC_WRITE:
      return if_offered_update<T, Replace>();
    case FI_ATOMIC_READ:
      return kind == AtomicKind::fetch ? only_read<T> : nullptr;
    default:
      return nullptr;
  }
}

template <typename T>
AtomicFunction find_swap(fi_op operation) {
  switch (operation) {
    case FI_CSWAP:
      return if_offered_swap<T, Equal>();
    case FI_CSWAP_NE:
      return if_offered_swap<T, NotEqual>();
    case FI_CSWAP_LE:
      return if_offered_swap<T, Ordered<true, true>>();
    case FI_CSWAP_LT:
      return if_offered_swap<T, Ordered<true, false>>();
    case FI_CSWAP_GE:
      return if_offered_swap<T, Ordered<false, true>>();
    case FI_CSWAP_GT:
      return if_offered_swap<T, Ordered<false, false>>();
    case FI_MSWAP:
      if constexpr (kIsWhole<T>) {
        return masked_swap<T>;
      } else {
        return nullptr;
      }
    default:
      return nullptr;
  }
}

template <typename T>
struct Type {
  using type = T;
};

/// Calls `use(Type<T>{})` with the C++ type of a datatype; `otherwise` for one that is not offered.
template <typename Use, typename Answer>
Answer with_type(fi_datatype datatype, Use&& use, Answer otherwise) {
  switch (static_cast<int>(datatype)) {
    case FI_INT8:
      return use(Type<std::int8_t>{});
    case FI_UINT8:
      return use(Type<std::uint8_t>{});
    case FI_INT16:
      return use(Type<std::int16_t>{});
    case FI_UINT16:
      return use(Type<std::uint16_t>{});
    case FI_INT32:
      return use(Type<std::int32_t>{});
    case FI_UINT32:
      return use(Type<std::uint32_t>{});
    case FI_INT64:
      return use(Type<std::int64_t>{});
    case FI_UINT64:
      return use(Type<std::uint64_t>{});
    case FI_INT128:
      return use(Type<Int128>{});
    case FI_UINT128:
      return use(Type<Uint128>{});
    case FI_FLOAT:
      return use(Type<float>{});
    case FI_DOUBLE:
      return use(Type<double>{});
    case FI_LONG_DOUBLE:
      return use(Type<long double>{});
    case FI_FLOAT_COMPLEX:
      return use(Type<std::complex<float>>{});
    case FI_DOUBLE_COMPLEX:
      return use(Type<std::complex<double>>{});
    case FI_LONG_DOUBLE_COMPLEX:
      return use(Type<std::complex<long double>>{});
    default:
      return otherwise;
  }
}

}  // namespace

AtomicFunction find_atomic(AtomicKind kind, fi_datatype datatype, fi_op operation) {
  return with_type(
      datatype,
      [=](auto type) -> AtomicFunction {
        using T = typename decltype(type)::type;
        return kind == AtomicKind::compare ? find_swap<T>(operation) : find_update<T>(kind, operation);
      },
      AtomicFunction{nullptr});
}

std::size_t datatype_bytes(fi_datatype datatype) {
  return with_type(
      datatype, [](auto type) { return sizeof(typename decltype(type)::type); }, std::size_t{0});
}

int query_atomic(fid_domain*, fi_datatype datatype, fi_op operation, fi_atomic_attr* attributes, std::uint64_t flags) {
  if ((flags & ~static_cast<std::uint64_t>(FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC)) != 0) return -FI_EBADFLAGS;
  const AtomicKind kind = (flags & FI_COMPARE_ATOMIC) != 0 ? AtomicKind::compare
                          : (flags & FI_FETCH_ATOMIC) != 0 ? AtomicKind::fetch
                                                           : AtomicKind::plain;
  if (find_atomic(kind, datatype, operation) == nullptr) return -FI_EOPNOTSUPP;
  attributes->size = datatype_bytes(datatype);
  attributes->count = kMostAtomicBytes / attributes->size;
  return 0;
}

}  // namespace railyard::provider
