import type { Wish } from "../products/product.ts";
import type { Measured, Stage } from "../stage.ts";

/** How much is measured. */
export interface Extent {
  seconds: number;
  /** Stored due jobs. */
  jobs: number;
  /** The most jobs that wait beside others. */
  waiting: number;
}

/** Something to be measured. Each point gets a product that was started for it alone, so that it begins cold. */
export interface Part {
  /** A line of the printed result. */
  title: string;
  /** Whether the part measures a feature that only jobwheel has. */
  isOurs?: boolean;
  points(extent: Extent): Point[];
}

export interface Point {
  wish: Wish;
  measure(stage: Stage): Promise<Measured[]>;
}
