#include "railyard/context.hpp"

#include "base/log.hpp"
#include "context/context_state.hpp"

namespace railyard {

Context::Context(std::unique_ptr<ContextState> state) : state_(std::move(state)) {}
Context::~Context() = default;

Result<std::unique_ptr<Context>> Context::open(const Settings& settings) {
  apply_log_settings(settings);
  log_changed_settings(settings);
  return std::unique_ptr<Context>(new Context(std::make_unique<ContextState>(settings)));
}

const Settings& Context::settings() const noexcept { return state_->settings; }
ContextStatistics Context::statistics() const { return state_->statistics(); }

}  // namespace railyard
