// The whole public API.
#pragma once

#include "zero/agreement.h"
#include "zero/communicator.h"
#include "zero/dtype.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/estimate.h"
#include "zero/layout.h"
#include "zero/ledger.h"
#include "zero/loss_scale.h"
#include "zero/memory_analyzer.h"
#include "zero/memory_report.h"
#include "zero/optimizer.h"
#include "zero/plan.h"
#include "zero/schedule.h"
#include "zero/traffic.h"
#include "zero/world.h"
