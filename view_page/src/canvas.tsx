/** The graph itself: boxes and edges that dagre laid out, drawn by React Flow, which keeps to what can be seen. */
import {
  BaseEdge, Background, BackgroundVariant, type Edge, type EdgeProps, Handle, MarkerType, MiniMap, type Node, type NodeProps, Position,
  ReactFlow, ReactFlowProvider,
} from "@xyflow/react";
import { type ReactNode, memo, useEffect, useMemo, useRef, useState } from "react";
import { fill, ink } from "./colour";
import { Chevron, Shape, Symbol } from "./icons";
import { type Drawing, Layouter, type Point } from "./layout";
import { NO_NODES, type View, select, toggle, useStore, useText, useTree } from "./store";
import { phaseText } from "./parts";
import { type Tree, type Verdict, verdictOf } from "./tree";

type Pane = "merged" | "target" | "golden";

interface BoxData extends Record<string, unknown> {
  label: string;
  type: string;
  verdict: Verdict | "plain";
  fill: string;
  ink: string;
  open: boolean;
  holds: number;
  chosen: boolean;
  dim: boolean;
  ghost: string;
  suspect: number;
  talks: boolean;
  module: boolean;
  name: string;
}

type BoxNode = Node<BoxData, "box">;

export const ARROW = { type: MarkerType.ArrowClosed, width: 15, height: 15 };

const BoxView = memo(function BoxView({ id, data }: NodeProps<BoxNode>): ReactNode {
  const classes = ["box", data.verdict, data.open ? "open" : "", data.chosen ? "chosen" : "", data.dim ? "dim" : "",
    data.ghost ? "ghost" : "", data.module ? "module" : ""].filter(Boolean).join(" ");
  return (
    <div className={classes} style={data.ghost ? undefined : { background: data.fill, color: data.open ? undefined : data.ink }}
      title={data.name} data-node={id} data-name={data.name}>
      <Handle type="target" position={Position.Top} isConnectable={false} />
      {data.ghost ? <span className="box-type">{data.ghost}</span> : (
        <>
          {data.holds > 0 && (
            <button className="box-fold" tabIndex={-1} aria-label={data.label} onClick={(event) => { event.stopPropagation(); toggle(Number(id)); }}>
              <Chevron open={data.open} />
            </button>
          )}
          <span className="box-text">
            <span className="box-label">{data.label}</span>
            <span className="box-type">{data.type}{data.holds > 0 && <span className="box-holds"> · {data.holds}</span>}</span>
          </span>
          {data.talks && <Symbol name="link" />}
          {data.suspect > 0 && <span className="suspect">{data.suspect}</span>}
          {data.verdict !== "plain" && <Shape verdict={data.verdict} />}
        </>
      )}
      <Handle type="source" position={Position.Bottom} isConnectable={false} />
    </div>
  );
});

/** A smooth line through the points that the layout has chosen. */
function through(points: Point[]): string {
  if (points.length === 0) return "";
  let path = `M${points[0].x},${points[0].y}`;
  if (points.length === 2) return `${path}L${points[1].x},${points[1].y}`;
  for (let i = 1; i < points.length - 1; i++) {
    const end = i === points.length - 2 ? points[i + 1]
      : { x: (points[i].x + points[i + 1].x) / 2, y: (points[i].y + points[i + 1].y) / 2 };
    path += `Q${points[i].x},${points[i].y} ${end.x},${end.y}`;
  }
  return path;
}

interface LineData extends Record<string, unknown> {
  points: Point[];
}

const LineView = memo(function LineView({ data, sourceX, sourceY, targetX, targetY, markerEnd }: EdgeProps<Edge<LineData>>): ReactNode {
  const points = data?.points ?? [];
  const bend = Math.max(30, Math.abs(targetY - sourceY) / 2);
  const path = points.length > 0 ? through(points)
    : `M${sourceX},${sourceY}C${sourceX},${sourceY + bend} ${targetX},${targetY - bend} ${targetX},${targetY}`;
  return <BaseEdge path={path} markerEnd={markerEnd} />;
});

const NODE_TYPES = { box: BoxView };
export const EDGE_TYPES = { line: LineView };

export function useDrawing(tree: Tree): Drawing {
  const open = useStore((state) => state.open.get(state.unit) ?? NO_NODES);
  const phase = useStore((state) => state.phase);
  const micro = useStore((state) => state.micro);
  const layouter = useMemo(() => new Layouter(tree), [tree]);
  return useMemo(() => layouter.draw(open, (node) => tree.shown(node, phase, micro)), [layouter, tree, open, phase, micro]);
}

interface PaneProps {
  tree: Tree;
  pane: Pane;
  drawing: Drawing;
  view: View;
  setView: (view: View) => void;
  suspects: ReadonlyMap<number, number>;
}

function useNodes({ tree, pane, drawing, suspects }: PaneProps): BoxNode[] {
  const theme = useStore((state) => state.theme);
  const selected = useStore((state) => state.selected);
  const only = useStore((state) => state.only);
  const words = useStore((state) => state.words);
  const plain = useStore((state) => state.data.kind === "dump");
  const say = useText();
  return useMemo(() => {
    const terms = words.toLowerCase().split(/\s+/).filter(Boolean);
    return drawing.boxes.map((box): BoxNode => {
      const { node } = box;
      const side = tree.side(node);
      const severity = tree.severity[node];
      const verdict = tree.verdict(node);
      const shade = tree.children[node].length > 0 ? verdictOf(severity) : verdict;
      const name = pane === "golden" && !tree.isGroup(node) ? tree.graph.partner[node] ?? tree.graph.name[node] : tree.name(node);
      const absent = (pane === "target" && side === "golden") || (pane === "golden" && side === "target");
      const dim = (only.size > 0 && !only.has(shade)) || (terms.length > 0 && !terms.every((term) => name.toLowerCase().includes(term)));
      const data: BoxData = {
        label: tree.label(node),
        type: [tree.type(node), tree.parent[node] < 0 && phaseText(tree, node, say), pane === "merged" && side !== "both" && !plain && say(side === "golden" ? "onlyGolden" : "onlyTarget")].filter(Boolean).join(" · "),
        verdict: plain && severity === null ? "plain" : shade,
        fill: box.open || (plain && severity === null) ? "" : fill(severity, theme),
        ink: ink(severity, theme),
        open: box.open,
        holds: tree.children[node].length,
        chosen: node === selected,
        dim,
        ghost: absent ? say(side === "golden" ? "onlyGolden" : "onlyTarget") : "",
        suspect: suspects.get(node) ?? 0,
        talks: !tree.isGroup(node) && tree.graph.communication[node] !== null,
        module: tree.kind(node) !== "api",
        name,
      };
      return {
        id: String(node), type: "box", position: { x: box.x, y: box.y }, width: box.width, height: box.height,
        zIndex: box.depth, data,
        handles: [
          { type: "target", position: Position.Top, x: box.width / 2, y: 0, width: 1, height: 1 },
          { type: "source", position: Position.Bottom, x: box.width / 2, y: box.height, width: 1, height: 1 },
        ],
      };
    });
  }, [tree, pane, drawing, suspects, theme, selected, only, words, plain, say("onlyTarget")]);
}

function useEdges({ tree, drawing }: PaneProps): Edge<LineData>[] {
  const selected = useStore((state) => state.selected);
  const open = useStore((state) => state.open.get(state.unit) ?? NO_NODES);
  return useMemo(() => {
    const edges = drawing.lines.map((line): Edge<LineData> => {
      const touches = line.from === selected || line.to === selected;
      return {
        id: `${line.from}-${line.to}`, source: String(line.from), target: String(line.to), type: "line",
        className: touches ? "touches" : "", markerEnd: ARROW, data: { points: line.points }, zIndex: tree.depth[line.from] + 1,
      };
    });
    if (selected < 0) return edges;
    const known = new Set(edges.map((edge) => edge.id));
    const seen = new Set(drawing.boxes.map((box) => box.node));
    const add = (from: number, to: number): void => {
      const [a, b] = [tree.visible(from, open), tree.visible(to, open)];
      const id = `${a}-${b}`;
      if (a === b || known.has(id) || !seen.has(a) || !seen.has(b)) return;
      known.add(id);
      edges.push({ id, source: String(a), target: String(b), type: "line", className: "touches far", markerEnd: ARROW, data: { points: [] }, zIndex: 99 });
    };
    for (const from of tree.sources(selected)) add(from, selected);
    for (const to of tree.consumers(selected)) add(selected, to);
    return edges;
  }, [tree, drawing, selected, open]);
}

function PaneView(props: PaneProps): ReactNode {
  const { pane, view, setView, tree } = props;
  const nodes = useNodes(props);
  const edges = useEdges(props);
  const theme = useStore((state) => state.theme);
  const say = useText();
  return (
    <div className={`pane pane-${pane}`} data-pane={pane}>
      {pane !== "merged" && <div className="pane-title">{say(pane)}</div>}
      <ReactFlow
        id={pane}
        nodes={nodes}
        edges={edges}
        nodeTypes={NODE_TYPES}
        edgeTypes={EDGE_TYPES}
        viewport={view}
        onViewportChange={setView}
        onNodeClick={(_event, node) => select(Number(node.id))}
        onNodeDoubleClick={(_event, node) => { if (tree.children[Number(node.id)].length > 0) toggle(Number(node.id)); }}
        onPaneClick={() => select(-1)}
        onlyRenderVisibleElements
        nodesDraggable={false}
        nodesConnectable={false}
        nodesFocusable={false}
        edgesFocusable={false}
        elementsSelectable={false}
        disableKeyboardA11y
        zoomOnDoubleClick={false}
        deleteKeyCode={null}
        panOnScroll
        minZoom={0.02}
        maxZoom={2}
        colorMode={theme}
        proOptions={{ hideAttribution: true }}
      >
        <Background variant={BackgroundVariant.Dots} gap={22} size={1} />
        {pane === "merged" && nodes.length > 12 && nodes.length < 1500 && (
          <MiniMap pannable zoomable ariaLabel={null} nodeColor={(node) => (node.data as BoxData).fill || "transparent"}
            nodeStrokeColor="var(--line-strong)" nodeStrokeWidth={4} style={{ width: 150, height: 110 }} />
        )}
      </ReactFlow>
    </div>
  );
}

const STILL = matchMedia("(prefers-reduced-motion: reduce)");

/** One or two panes that move as one; `commands` hands the keys' movements out. */
export function Canvas({ commands, suspects }: {
  suspects: ReadonlyMap<number, number>; commands: { current: { fit: () => void; zoom: (by: number) => void } | null } }): ReactNode {
  const tree = useTree();
  return tree ? <CanvasOf tree={tree} commands={commands} suspects={suspects} /> : <div className="canvas" />;
}

function CanvasOf({ tree, commands, suspects }: {
  suspects: ReadonlyMap<number, number>; tree: Tree; commands: { current: { fit: () => void; zoom: (by: number) => void } | null } }): ReactNode {
  const drawing = useDrawing(tree);
  const sideBySide = useStore((state) => state.sideBySide && state.data.sides.golden !== null);
  const shows = useStore((state) => state.shows);
  const [view, setView] = useState<View>({ x: 0, y: 0, zoom: 1 });
  const room = useRef<HTMLDivElement>(null);
  const motion = useRef(0);

  const paneSize = (): { width: number; height: number } => {
    const pane = room.current?.querySelector(".pane");
    return { width: pane?.clientWidth ?? 800, height: pane?.clientHeight ?? 600 };
  };
  const go = (to: View): void => {
    cancelAnimationFrame(motion.current);
    if (STILL.matches) {
      setView(to);
      return;
    }
    const from = view;
    const began = performance.now();
    const frame = (now: number): void => {
      const part = Math.min(1, (now - began) / 220);
      const eased = 1 - (1 - part) ** 3;
      setView({ x: from.x + (to.x - from.x) * eased, y: from.y + (to.y - from.y) * eased, zoom: from.zoom + (to.zoom - from.zoom) * eased });
      if (part < 1) motion.current = requestAnimationFrame(frame);
    };
    motion.current = requestAnimationFrame(frame);
  };
  const fitted = (): View => {
    const size = paneSize();
    const zoom = Math.min(1.1, Math.max(0.05, Math.min((size.width - 40) / drawing.width, (size.height - 40) / drawing.height)));
    const legible = Math.max(zoom, 0.62);
    return { zoom: legible, x: (size.width - drawing.width * legible) / 2, y: zoom < legible ? 20 : (size.height - drawing.height * legible) / 2 };
  };
  const zoom = (by: number): void => {
    const size = paneSize();
    const factor = Math.min(2, Math.max(0.02, view.zoom * by)) / view.zoom;
    go({ zoom: view.zoom * factor, x: size.width / 2 - (size.width / 2 - view.x) * factor, y: size.height / 2 - (size.height / 2 - view.y) * factor });
  };
  commands.current = { fit: () => go(fitted()), zoom };

  useEffect(() => {
    const { selected } = useStore.getState();
    const box = drawing.boxes.find((item) => item.node === selected);
    if (!box) {
      go(fitted());
      return;
    }
    const size = paneSize();
    const next = Math.min(1.1, Math.max(0.75, view.zoom));
    const height = Math.min(box.height, 300);
    go({ zoom: next, x: size.width / 2 - (box.x + box.width / 2) * next, y: size.height / 2 - (box.y + height / 2) * next });
  }, [shows, tree, sideBySide]);

  // Where a container was opened or closed, it stays under the pointer.
  const before = useRef<Drawing>(drawing);
  const selected = useStore((state) => state.selected);
  const seenShows = useRef(shows);
  useEffect(() => {
    const last = before.current;
    before.current = drawing;
    const asked = seenShows.current !== shows;
    seenShows.current = shows;
    if (last === drawing || asked || selected < 0) return;
    const old = last.boxes.find((box) => box.node === selected);
    const now = drawing.boxes.find((box) => box.node === selected);
    if (!old || !now) return;
    setView((at) => ({
      zoom: at.zoom,
      x: at.x + (old.x + old.width / 2 - now.x - now.width / 2) * at.zoom,
      y: at.y + (old.y - now.y) * at.zoom,
    }));
  }, [drawing]);

  const common = { tree, drawing, view, setView, suspects };
  return (
    <div className="canvas" ref={room}>
      {sideBySide ? (
        <>
          <ReactFlowProvider><PaneView {...common} pane="target" /></ReactFlowProvider>
          <ReactFlowProvider><PaneView {...common} pane="golden" /></ReactFlowProvider>
        </>
      ) : (
        <ReactFlowProvider><PaneView {...common} pane="merged" /></ReactFlowProvider>
      )}
    </div>
  );
}
