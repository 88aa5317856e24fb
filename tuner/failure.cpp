// SPDX-License-Identifier: Apache-2.0
// Exceptions of every kind to outcomes.
#include "tuner/failure.h"

#include <exception>
#include <new>

#include "tuner/backend.h"
#include "tuner/protocol.h"

namespace muse::tuner {

Failure current_failure() {
  try {
    throw;
  } catch (const DeviceFault&) {
    throw;
  } catch (const TrialError& error) {
    return {error.outcome, plain_text(error.what())};
  } catch (const std::bad_alloc&) {
    return {Outcome::kOom, "out of host memory: std::bad_alloc"};
  } catch (const std::exception& error) {
    return {Outcome::kLaunchFailed, "exception: " + plain_text(error.what())};
  } catch (...) {
    return {Outcome::kLaunchFailed, "an exception that is no std::exception"};
  }
}

}  // namespace muse::tuner
